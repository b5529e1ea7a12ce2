"""The three outcomes of a decoder: a value, "need more", or "this can never become valid"."""


class CodecError(ValueError):
    """Bytes that do not match their format. The message says what was expected and what was found."""


class Truncated(CodecError):
    """The bytes end before the value does. More bytes may complete it; at rest it is a torn tail."""


class Corrupt(CodecError):
    """The bytes are wrong, and no further bytes would make them right."""


class UnsupportedVersion(Corrupt):
    """A known format in a version this release does not read: the writer is newer than the reader."""


class PreRelease(UnsupportedVersion):
    """A part of a hub's store in a form that only builds before the first release wrote."""

    def __init__(self) -> None:
        super().__init__("this store was written by a pre-release build and cannot be opened. Use a new store")
