"""The bytes that are signed, and what counts as a signature."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.config.signing import (
    PublicKey,
    SignatureUnreadable,
    Statement,
    check_code,
    digest_of,
    key_id,
    make_key,
    message_of,
    read_public_keys,
    read_signed,
    sign,
    verifies,
    with_signature,
)

PAGE = Path(__file__).parents[2] / "docs/reference/formats/signatures.md"
STATEMENT = Statement("acme", "group presses", ("press-*", "oven-1"), -2, 42, ("group old",))
TEXT = "streams: {alarms: {from: 'alarms/#'}}\n"
SIGNED = with_signature(TEXT, STATEMENT, "0123456789abcdef", bytes(range(64)))
NAMES = st.text("ab0-_", min_size=1, max_size=8)


def test_the_signed_bytes_are_those_of_the_format_page() -> None:
    digest = hashlib.sha256(TEXT.encode()).hexdigest()
    assert (
        message_of(TEXT, STATEMENT)
        == (
            "weft-signature: 1\ntenant: acme\ntarget: group presses\nedges: press-*, oven-1\norder: -2\nnumber: 42\n"
            f"withdraws: group old\nsha256: {digest}\n"
        ).encode()
    )
    assert SIGNED == TEXT + (
        "# weft-signature: 1\n# tenant: acme\n# target: group presses\n# edges: press-*, oven-1\n# order: -2\n"
        "# number: 42\n# withdraws: group old\n# key: 0123456789abcdef\n"
        "# ed25519: AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vMDEyMzQ1Njc4OTo7PD0+Pw==\n"
    )


@given(
    st.text(st.characters(codec="utf-8"), max_size=200),
    st.builds(
        Statement,
        NAMES,
        NAMES.map("edge {}".format),
        st.lists(NAMES, min_size=1, max_size=3).map(tuple),
        st.integers(-1000, 1000),
        st.integers(1, (1 << 63) - 1),
        st.lists(NAMES.map("group {}".format), max_size=3).map(tuple),
    ),
)
def test_what_is_signed_is_what_is_read(text: str, statement: Statement) -> None:
    text = f"{text}\n"
    found = read_signed(with_signature(text, statement, "0" * 16, bytes(64)))
    assert found is not None
    assert (found.text, found.statement, found.message) == (text, statement, message_of(text, statement))


@pytest.mark.parametrize(
    "wrong",
    [
        f"{SIGNED}data_dir: /tmp\n",
        f"{SIGNED}# more\n",
        SIGNED.replace("signature: 1", "signature: 2"),
        SIGNED.replace("order: -2", "order: -0"),
        SIGNED.replace("number: 42", "number: 042"),
        SIGNED.replace("number: 42", "number: 9999999999999999999"),
        SIGNED.replace("# tenant: acme\n", ""),
        SIGNED.replace("acme", "acme\r"),
        SIGNED.replace("Pw==", "Pw="),
        SIGNED.replace("presses", "a, b"),
    ],
)
def test_another_form_is_no_signature(wrong: str) -> None:
    with pytest.raises(SignatureUnreadable):
        read_signed(wrong)


def test_settings_without_one_have_none_and_the_last_one_counts() -> None:
    assert read_signed(TEXT) is None
    assert read_signed(f"a: '# weft-signature: 1'\n{TEXT}") is None
    twice = with_signature(SIGNED, STATEMENT._replace(number=43), "0" * 16, bytes(64))
    found = read_signed(twice)
    assert found is not None
    assert (found.text, found.statement.number) == (SIGNED, 43)


def test_a_key_verifies_what_it_signed_and_nothing_else() -> None:
    private, _, name = make_key()
    key, signature = sign(private, b"this")
    assert key == name
    other, raw = make_key()[0], _raw(private)
    known = [PublicKey(key_id(_raw(other)), _raw(other)), PublicKey(key, raw)]
    assert key_id(raw) == key
    assert verifies(known, b"this", signature)
    assert not verifies(known, b"that", signature)
    assert not verifies(known[:1], b"this", signature)
    assert not verifies([], b"this", signature)


def test_the_examples_of_the_format_page_verify(tmp_path: Path) -> None:
    pem, settings, message, beside = re.findall(r"```text\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "page.pub").write_text(pem)
    keys = read_public_keys([str(tmp_path / "page.pub")]).keys
    found = read_signed(settings)
    assert found is not None
    assert found.message == message.encode()
    assert found.key == keys[0].id
    assert verifies(keys, found.message, found.signature)
    code = tmp_path / "score.py"
    code.write_text("def process(record, ctx):\n    return record\n")
    (tmp_path / "score.py.sig").write_text(beside)
    check_code(str(code), digest_of(str(code)), [str(tmp_path / "page.pub")])


def _raw(private: bytes) -> bytes:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    key = load_pem_private_key(private, None)
    assert isinstance(key, Ed25519PrivateKey)
    return key.public_key().public_bytes_raw()
