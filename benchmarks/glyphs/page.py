"""The page of the glyphs, from the figures that a run kept."""

from __future__ import annotations

from typing import Any

import numpy as np

PAGE = """\
# Ten thousand classes, measured

Written by the command below; do not edit by hand. Machine: {machine}.

<!-- not run: some twenty minutes on two quiet cores -->
```sh
python -m benchmarks.glyphs.run FONTS --out RUN --steps {steps} --head-steps {head_steps} \\
  --renderings {renderings} --seeds {seeds} --pecos PYTHON
```

The 11,172 Hangul syllables in {count} faces of Debian's font packages ({faces}), as
grey pictures of 32 × 32 pixels, shifted by up to 2 pixels, scaled by 0.85 to 1.15 and blurred, all
at random. They are printed letters, cleaner than photographs or handwriting, and made of few parts:
the unseen characters consist of letters that were seen in others. A fifth of the characters,
{unseen:,}, is held out, and so is the last face; {seen:,} characters are seen.

One trunk for all methods: four convolutions and a dense layer, {dim} numbers of length one, trained
by a softmax over the seen characters in all faces but the last, {steps:,} steps of 256 pictures,
one seed, then held still. It is small and trained for minutes, far from the best that could be had:
see exhaustive search, and how often its own classifier is right. {notes}What
is compared are heads on its embedding, by which everything ranks, but where a row says *whitened*.
Heads take {head_steps:,} steps of 512 items, but where a row says otherwise. Nothing was chosen on
the queries of these tables; FlowHash's settings were tried on further pictures of seen characters
("validation" below).

*SUF* is items in the table over items scanned; *Pr@K* the share of the K nearest found that are the
same character, in percent; *used* the share of the buckets that hold an item of the table; *items*
the variation (standard deviation over mean) of how many items they hold, *codes* that of how many
classes have them as their code. *Parameters* are the head's numbers that were learned from labels.
*Seconds* are of one processor's time, in the head's training, on a machine where others worked too;
*solver* is milliseconds a step of it in which codes are found. An item is in k buckets, a query
opens k.

- *Softmax*: the seen characters are the buckets. *Trunk's own* is what the trunk was trained with;
  *fresh* is a linear layer trained like the other heads, from Fisher's discriminant, where
  FlowHash starts too.
- *PECOS XR-Linear* (libpecos) installs beside an older numpy and has its defaults, which drop small
  weights; it has classes and a tree over them, but no buckets to search.
- *Random hashing* (as MACH has it, with one table): each class has k of the {buckets:,} buckets by
  lot.
- *k-means*: FAISS, {buckets:,} means, twenty turns, fitted on the items of the table or on the
  training items, which are the table of the seen characters.
- *FlowHash*: `vector_settings(labels, {buckets})`, {heads}; means, and the standard deviation
  behind ±. *Random start, 64 classes a batch* is what it was before this page, twice the steps of
  half the items. *Whitened* is `rank="whitened"`, in the same way for the softmax.

{verdicts}

How to read it, of this run:

- Most of what FlowHash finds is in its start, Fisher's discriminant of classes that were halved
  until a bucket had four or five (the row *start, no step*). The training makes buckets even, and
  so raises SUF; it hardly changes what is found first.
- k-means of the training items, which sees no labels, finds a little more at k = 1 at nearly the
  same scan, and as much at k = 2; it is less even. The trunk has seen the labels already, so that
  near items are mostly of one character: a head has little left to learn.
- A random start, with 64 classes in a batch, finds less of everything.
- A softmax's classes as buckets scan less at nearly the same Pr@1, with more than four times the
  parameters. A query's bucket then has to be its very character's; with fewer buckets a confusion
  of two characters that share one costs nothing, as the exact ranking tells them apart.
- Buckets learned from seen characters do not fit the unseen ones as well as means that are fitted
  on them: loads are uneven there, and pictures of one character fall on both sides of a border.

{tables}{loads}{pecos}"""
TRIED = """\
With an earlier trunk, at k = 1, 300 steps, seed 0, λ = 5 (the preset's) had Pr@1 72.95 and SUF
1,555 on validation; λ = 1 had 72.98 and 1,573, and half of the solver's time; λ = 0.1 had 75.03 and
1,103, with 28 % of the buckets in no class's code and a variation of 0.75. The preset's was kept.
Other rates and numbers of steps were not tried.

Other metrics to rank by were tried by exhaustive search among 17,872 further pictures of 2,234 seen
characters in all faces, every fourth of them as a query: the embedding as it is has Pr@1 90.06,
whitened with a shrinkage of 0.3 (`rank="whitened"`) 87.38, of 0.1 85.05, of 0.6 88.50, of 0.9
89.84. In half of the directions classes differ by about half of the spread within them or less
(variances); whitening lets these count as much as the others. Where they count less, by the ratio
of the two spreads, it has 86.3 to 90.3: no more than the embedding as it is, but for noise."""
TITLES = {
    "new": "Seen characters, new pictures in the faces that were trained on",
    "face": "Seen characters in the face that was held out",
    "unseen": "Unseen characters, searched among themselves",
}
ROWS = {
    "trunk": "softmax, trunk's own",
    "softmax": "softmax, fresh",
    "softmax-whitened": "softmax, fresh, whitened",
    "mach": "random hashing",
    "means-train": "k-means, fitted on train",
    "means-fifth": "k-means, fitted on train, a fifth of the softmax's parameters",
    "means-table": "k-means, fitted on the table",
    "before": "FlowHash, random start, 64 classes a batch",
    "start": "FlowHash's start, no step",
    "fifth": "FlowHash, a fifth of the softmax's parameters",
    "flowwhite": "FlowHash, whitened",
    "flow": "**FlowHash**",
}
SEEDED = ("flow", "flowwhite", "before", "fifth")  # rows that may have several seeds
FITTED = {  # rows of the unseen characters where more buckets are opened: head, where it stands
    "FlowHash, inductive": ("flow", "opened/unseen"),
    "FlowHash, adapted": ("flow", "opened/adapted"),
    "FlowHash, inductive, whitened": ("flowwhite", "opened/unseen"),
    "FlowHash, adapted, whitened": ("flowwhite", "opened/adapted"),
}


def page_of(values: dict[str, Any], machine: str, seeds: int) -> str:
    """The whole page; what was not measured is left out."""
    made = [len(_seeds(values, "new", "flow", active)) for active in (1, 2)]
    given = {
        **values["about"],
        "machine": machine,
        "notes": f"{values['notes']} " if "notes" in values else "",
        "count": len(values["about"]["faces"]),
        "faces": ", ".join(values["about"]["faces"]),
        "seeds": seeds,
        "heads": f"seeds of the head: {made[0]} at k = 1, {made[1]} at k = 2",
        "verdicts": _verdicts(values),
        "tables": "".join(_table(values, side) for side in TITLES)
        + _fitted(values)
        + _seen_opened(values),
        "loads": _loads(values),
        "pecos": _pecos(values),
    }
    return PAGE.format(**given).rstrip() + "\n"


def _place(side: str) -> str:
    return "unseen" if side == "unseen" else "seen"


def _seeds(values: dict[str, Any], side: str, name: str, active: int) -> list[dict[str, float]]:
    start = f"{_place(side)}/{name}{active}-"
    return [found[side] for key, found in values.items() if key.startswith(start)]


def _found(values: dict[str, Any], side: str, name: str, active: int) -> list[dict[str, float]]:
    """Figures of a row, one for each seed; none where it was not measured."""
    if name in SEEDED:
        return _seeds(values, side, name, active)
    key = f"{_place(side)}/{name}{active if name == 'mach' else ''}/{active}"
    return [values[key][side]] if key in values else []


def _facts(values: dict[str, Any], name: str, active: int) -> list[dict[str, Any]]:
    if name in SEEDED:
        start = f"{name}{active}-"
        return [found for key, found in values.items() if key.startswith(start)]
    found = values.get(f"mach{active}" if name == "mach" else name.removesuffix("-whitened"))
    return [] if found is None else [found]


def _table(values: dict[str, Any], side: str) -> str:
    about = values["about"]
    searched = about["sizes"]["unseen" if side == "unseen" else "train"]
    whole = values.get(f"{_place(side)}/exhaustive", {}).get(side, {})
    tops = [name for name in ("pr1", "pr4", "pr16") if name in whole]
    titles = [f"Pr@{name[2:]}" for name in tops]
    columns = ["d", "k", "method", "SUF", *titles, "used", "items", "codes"]
    columns += ["parameters", "seconds", "solver"]
    lines = [
        f"## {TITLES[side]}",
        "",
        f"{searched:,} items, {about['asked'][side]:,} queries."
        + (" Each item is searched among the others." if side == "unseen" else ""),
        "",
        "| " + " | ".join(columns) + " |",
        "|" + "|".join("---" if name == "method" else "---:" for name in columns) + "|",
    ]
    for end, words in (("", "exhaustive"), ("-whitened", "exhaustive, whitened")):
        every = values.get(f"{_place(side)}/exhaustive{end}", {}).get(side)
        if every:
            cells = ["", "", words, "1.0", *(f"{every[top]:.2f}" for top in tops)]
            lines.append("| " + " | ".join([*cells, *[""] * 6]) + " |")
    for active in (1, 2):
        for name, words in ROWS.items():
            found = _found(values, side, name, active)
            if found:
                lines.append(_line(values, side, (name, words, active), tops))
    return "\n".join(lines) + "\n\n"


def _line(values: dict[str, Any], side: str, row: tuple[str, str, int], tops: list[str]) -> str:
    name, words, active = row
    found, facts = _found(values, side, name, active), _facts(values, name, active)
    about = values["about"]
    kind = name.removesuffix("-whitened")
    classes, fifth = about["seen"], about["seen"] // 5
    buckets = {"trunk": classes, "softmax": classes, "fifth": fifth, "means-fifth": fifth}.get(
        kind, about["buckets"]
    )
    cells = [f"{buckets:,}", str(active), words, _mean(found, "suf", 1)]
    cells += [_mean(found, top, 2) for top in tops]
    cells += [_mean(found, "used", 1), _mean(found, "variation", 2)]
    if kind in ("trunk", "softmax"):
        cells.append("0" if active == 1 else "")
        facts = [{**each, "codes_variation": None} for each in facts]
    else:
        cells.append(_mean(facts, "codes_variation", 2))
    cells += [_mean(facts, "parameters", 0), _mean(facts, "seconds", 0), _mean(facts, "solver", 0)]
    if name == "trunk":
        cells[-2] = ""  # it came with the trunk
    return "| " + " | ".join(cells) + " |"


def _mean(found: list[dict[str, Any]], name: str, digits: int) -> str:
    values = [each[name] for each in found if each.get(name) is not None]
    if not values:
        return ""
    text = f"{np.mean(values):,.{digits}f}"
    if len(values) > 1 and np.std(values) > 0:
        text += f" ± {np.std(values, ddof=1):.{digits}f}"
    return text


def at_scan(
    values: dict[str, Any], speed_up: float, name: str, kind: str = "plain"
) -> float | None:
    """The best that IVF finds at a SUF: lists and probes as they come, on a line between them."""
    best: list[float] = []
    for key, found in values.items():
        if not key.startswith(f"lists/{kind}/"):
            continue
        curve = sorted((each["unseen"] for each in found.values()), key=lambda each: each["suf"])
        if curve[0]["suf"] <= speed_up <= curve[-1]["suf"]:
            scans = [np.log(each["suf"]) for each in curve]
            best.append(float(np.interp(np.log(speed_up), scans, [each[name] for each in curve])))
    return max(best) if best else None


def _opened(
    values: dict[str, Any], place: str, name: str, active: int, probe: int, side: str
) -> list[dict[str, float]]:
    """Figures where queries open so many buckets, one for each seed."""
    start = f"{place}/{name}{active}-"
    return [
        found[str(probe)][side]
        for key, found in values.items()
        if key.startswith(start) and str(probe) in found
    ]


def _fitted(values: dict[str, Any]) -> str:
    """Unseen characters, more buckets opened, fitted to the table or not, beside IVF."""
    lines = [
        "## Unseen characters, more buckets opened, and buckets fitted to the table",
        "",
        "*Inductive* is what was trained on the seen characters. *Adapted* is the same after",
        "`adapt`: its buckets are fitted to the items of the table, without labels. That is",
        "k-means from the trained buckets, so that IVF, which is k-means from items by lot, is the",
        "simplest explanation of it. *IVF* is Pr@1 of the best number of lists at the row's SUF,",
        "chosen on these very queries, on a line between its points; *whitened* the same in the",
        "whitened embedding. The lead is over the plain one.",
        "",
        "| k | opened | method | SUF | Pr@1 | Pr@4 | IVF | IVF, whitened | lead |",
        "|---:|---:|---|---:|---:|---:|---:|---:|---:|",
    ]
    rows = [(active, probe, words) for active in (1, 2) for probe in (1, 2, 4) for words in FITTED]
    for active, probe, words in rows:
        name, place = FITTED[words]
        found = _opened(values, place, name, active, probe, "unseen")
        if not found:
            continue
        speed_up, ours = (float(np.mean([each[key] for each in found])) for key in ("suf", "pr1"))
        cells = [str(active), str(probe), words, _mean(found, "suf", 1)]
        cells += [_mean(found, "pr1", 2), _mean(found, "pr4", 2)]
        theirs = [at_scan(values, speed_up, "pr1", kind) for kind in ("plain", "whitened")]
        cells += ["" if each is None else f"{each:.2f}" for each in theirs]
        cells.append("" if theirs[0] is None else f"{ours - theirs[0]:+.2f}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n\n"


def _seen_opened(values: dict[str, Any]) -> str:
    """Seen characters, a fifth of the parameters beside the softmax, more buckets opened."""
    lines = [
        "## Seen characters, a fifth of the softmax's parameters, more buckets opened",
        "",
        "| k | opened | method | SUF, new pictures | Pr@1 | SUF, held-out face | Pr@1 |",
        "|---:|---:|---|---:|---:|---:|---:|",
    ]
    for active in (1, 2):
        for probe in (1, 2, 4):
            for name in ("softmax", "fifth"):
                cells = [str(active), str(probe), ROWS[name]]
                for side in ("new", "face"):
                    found = _opened(values, "opened/seen", name, active, probe, side)
                    cells += [_mean(found, "suf", 1), _mean(found, "pr1", 2)]
                if any(cells[3:]):
                    lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n\n"


def _verdicts(values: dict[str, Any]) -> str:
    """The bars, each with its figures, met or missed."""
    lines: list[str] = []
    for active in (1, 2):
        for side in ("new", "face"):
            lines += _beside_softmax(values, side, active)
        for words in ("FlowHash, inductive", "FlowHash, adapted"):
            lines += _beside_lists(values, words, active)
        every = values.get(f"all{active}-0")
        if every:
            met = every["codes_used"] >= 95 and every["codes_variation"] <= 0.35
            lines.append(
                f"All 11,172 characters as classes, k = {active}: their codes use "
                f"{every['codes_used']:.1f} % of the buckets, variation "
                f"{every['codes_variation']:.2f}: **{'met' if met else 'missed'}** (95 %, 0.35)."
            )
    text = "\n".join(f"- {line}" for line in lines)
    return f"What was asked of it:\n\n{text}" if lines else ""


def _beside_lists(values: dict[str, Any], words: str, active: int) -> list[str]:
    """The bar of unseen characters: at or above IVF at the same scan, for each number opened."""
    (name, place), parts, met = FITTED[words], [], []
    for probe in (1, 2, 4):
        found = _opened(values, place, name, active, probe, "unseen")
        if not found:
            continue
        speed_up, ours = (float(np.mean([each[key] for each in found])) for key in ("suf", "pr1"))
        theirs = at_scan(values, speed_up, "pr1")
        if theirs is not None:
            met.append(ours >= theirs)
            parts.append(f"{ours:.2f} against {theirs:.2f} at SUF {speed_up:.0f} ({probe} opened)")
    if not parts:
        return []
    verdict = "met" if all(met) else "missed" if not any(met) else "met with some, not with all"
    return [
        f"Unseen characters, k = {active}, {words.split(', ')[1]}: Pr@1 {', '.join(parts)}, the "
        f"latter of IVF, the best of 1,024 to 4,096 lists at that scan: **{verdict}**."
    ]


def _beside_softmax(values: dict[str, Any], side: str, active: int) -> list[str]:
    """The bar of seen characters: within a point of the better softmax, at a fifth of its size."""
    flow = _found(values, side, "flow", active)
    rivals = [
        found for name in ("trunk", "softmax") for found in _found(values, side, name, active)
    ]
    if not flow or not rivals:
        return []
    about = values["about"]
    ours, best = float(np.mean([each["pr1"] for each in flow])), max(each["pr1"] for each in rivals)
    share, kind = about["buckets"] / about["seen"], {"new": "new pictures", "face": "held-out face"}
    near = "within a point of it" if ours >= best - 1 else "**missed**, not within a point of it"
    size = f"{100 * share:.1f} % of the softmax's parameters"
    made = (
        f"Seen characters, {kind[side]}, k = {active}: Pr@1 {ours:.2f} against {best:.2f} of the "
        f"better softmax's classes as buckets: {near}. The head has {size}, not a fifth. It scans "
        f"{_scans(flow, rivals):.1f} times as much."
    )
    fifth = _found(values, side, "fifth", active)
    if fifth:
        found = float(np.mean([each["pr1"] for each in fifth]))
        made += (
            f" With {about['seen'] // 5:,} buckets, a fifth of the parameters, Pr@1 is "
            f"{_mean(fifth, 'pr1', 2)}: **{'met' if found >= best - 1 else 'missed'}**."
        )
    return [made]


def _scans(ours: list[dict[str, float]], theirs: list[dict[str, float]]) -> float:
    """How many times as much is scanned as by the most precise of the others."""
    best = max(theirs, key=lambda each: each["pr1"])
    return best["suf"] / float(np.mean([each["suf"] for each in ours]))


def _loads(values: dict[str, Any]) -> str:
    """Validation of what was tried, and IVF at other scans."""
    lines = ["## What was tried on validation, and IVF at other scans", ""]
    lines += [TRIED, ""]
    tried = [
        (key, found)
        for key, found in values.items()
        if isinstance(found, dict) and "validation" in found
    ]
    if tried:
        lines += ["| training | Pr@1 | SUF | buckets used | codes |", "|---|---:|---:|---:|---:|"]
    for key, found in tried:
        name = "".join(letter for letter in key.split("-")[0] if letter.isalpha())
        active, seed = key.split("-")[0][-1], key.split("-")[1]
        checked = found["validation"]
        lines.append(
            f"| {ROWS[name].strip('*')}, k = {active}, seed {seed} | {100 * checked['pr1']:.2f} | "
            f"{checked['suf']:.0f} | {100 - 100 * checked['empty_buckets']:.1f} % | "
            f"{found['codes_variation']:.2f} |"
        )
    lines += ["", "IVF on the unseen characters, in the plain and in the whitened embedding:", ""]
    lines += [
        "| embedding | lists | opened | SUF | Pr@1 | Pr@4 |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for key, measured in values.items():
        if not key.startswith("lists/"):
            continue
        _, kind, lists = key.split("/")
        for opened, each in measured.items():
            found = each["unseen"]
            lines.append(
                f"| {kind} | {int(lists):,} | {opened} | {found['suf']:.0f} | {found['pr1']:.2f} | "
                f"{found['pr4']:.2f} |"
            )
    return "\n".join(lines) + "\n\n"


def _pecos(values: dict[str, Any]) -> str:
    """Classifiers' accuracy, without any search."""
    lines = ["## Which character it is, by classifiers alone", ""]
    lines += ["| classifier | new pictures | held-out face | parameters | seconds |"]
    lines.append("|---|---:|---:|---:|---:|")
    for name in ("trunk", "softmax"):
        if f"accuracy/{name}" in values:
            spent = "" if name == "trunk" else f"{values[name]['seconds']:.0f}"
            new, face = (values[f"accuracy/{name}"][side] for side in ("new", "face"))
            count = values[name]["parameters"]
            lines.append(f"| {ROWS[name]} | {new:.2f} | {face:.2f} | {count:,} | {spent} |")
    if "pecos" in values:
        new, face, count, spent = values["pecos"]
        cells = (f"{100 * new:.2f}", f"{100 * face:.2f}", f"{count:,.0f}", f"{spent:.0f}")
        lines.append(f"| PECOS XR-Linear, its defaults | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
