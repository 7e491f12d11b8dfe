"""What may be shown of an address: never a password or a key."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from flowhash.engines import SCHEMES, hidden

# Passwords that a user may have typed without encoding them, and how they would be encoded.
ODD = ["se@cret", "se/cret", "se?cret", "se%40cret", "se[cret", "se]cret", "se#cret", "s:e@c:ret",
       "se@cr@et", "//se@cret", "se?cret=1@", "se://cret", "%73ecret", "se cret"]  # fmt: skip
PARTS = ("se", "cret", "%73")  # of those passwords; no other word below has one of them
NAMES = ["password", "sslpassword", "api_key", "api-key", "oauth_client_secret",
         "scram_client_key", "scram_server_key", "PASSWORD", "pass%77ord",
         # that there are not
         "passwordd", "pass", "pwd", "token", "key"]  # fmt: skip


def free_of_secrets(shown: str, *kept: str) -> bool:
    rest = shown
    for word in kept:
        rest = rest.replace(word, "")
    return not any(part in rest for part in PARTS)


@pytest.mark.parametrize("password", ODD)
def test_passwords_before_the_host(password: str) -> None:
    shown = hidden(f"postgresql://me:{password}@host:5432/db?table=x")
    assert shown == "postgresql://me@host:5432/db?table=x"
    assert hidden(f"postgres:/me:{password}@host/db") == "postgres:/me@host/db"


@pytest.mark.parametrize("scheme", ["qdrant", "qdrant+https", "QDRANT"])
@pytest.mark.parametrize("key", ODD)
def test_keys_before_the_host(scheme: str, key: str) -> None:
    """Also where the key stands alone, as if it were a user."""
    for user in (f":{key}", key, f"me:{key}"):
        assert hidden(f"{scheme}://{user}@host:6333/x") == f"{scheme}://host:6333/x"
        shown = hidden(f"{scheme}:/{user}@host:6333/x")
        assert shown.endswith("/host:6333/x")
        assert free_of_secrets(shown)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("password", ODD)
def test_secrets_among_the_options(name: str, password: str) -> None:
    for place in ("host/db", "host:5432/db", "me@host:5432/db", "/db"):
        for options in (f"{name}={password}", f"table=x&{name}={password}&port=1"):
            shown = hidden(f"postgresql://{place}?{options}")
            assert free_of_secrets(shown, name), shown
            assert shown.startswith(f"postgresql://{place}?"), shown
            assert f"{name}=…" in shown


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://me@host:5432/db?table=pets&sslmode=require",
        "postgresql:///db?host=/tmp/run",
        "postgresql://[::1]:5432,other:,third/db",
        "qdrant://host:6333/pets?grpc_port=1",
        "qdrant+local:///home/me@work/db?collection=pets",
        "pets.table",
    ],
)
def test_what_has_no_secret_stays(text: str) -> None:
    assert hidden(text) == text


@pytest.mark.parametrize("scheme", ["postgresql", "qdrant"])
def test_a_password_that_looks_like_a_port(scheme: str) -> None:
    """With a slash in it, what is before that is where a port would be."""
    for text in (f"{scheme}://me:secret/x", f"{scheme}://a:1,me:secret/x", f"{scheme}://me:secret"):
        assert free_of_secrets(hidden(text))
        assert "://" in hidden(text)


@pytest.mark.parametrize("scheme", ["postgresql", "qdrant"])
@pytest.mark.parametrize("end", ["", "/x", "?table=x"])
def test_a_password_with_a_colon_that_looks_like_a_port(scheme: str, end: str) -> None:
    for password in ("secret:1", "1:secret", "abc:secret", "a:b:secret", "[se]cret:1", ":secret"):
        shown = hidden(f"{scheme}://me:{password}{end}")
        assert shown == f"{scheme}://me:…{end}"
    assert hidden(f"{scheme}://[::1]:secret{end}") == f"{scheme}://[::1]:…{end}"


@given(
    st.sampled_from(sorted(SCHEMES)),
    st.text("@/?%[]#:&=+ é", max_size=6),
    st.text("@/?%[]#:&=+ é", max_size=6),
)
def test_no_password_shows(scheme: str, before: str, after: str) -> None:
    """However its characters are mixed; what stands between them is never there."""
    assert "STAPLE" not in hidden(f"{scheme}://me:{before}STAPLE{after}@host/db")
    if scheme.startswith("qdrant"):
        assert "STAPLE" not in hidden(f"{scheme}://x{before}STAPLE{after}@host/db")
