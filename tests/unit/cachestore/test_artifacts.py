"""What a file of exported prefixes says of itself."""

import pytest

from bramley.cachestore import artifacts


def test_a_newer_reader_s_manifest_is_known_by_its_first_words() -> None:
    newer = b'{"format":"bramley-prefixes","version":9,"reader":2,"shape":"unknown"}'
    with pytest.raises(artifacts.Unfit) as caught:
        artifacts.decode_manifest(newer)
    assert caught.value.reason == "ARTIFACT_NEWER"
