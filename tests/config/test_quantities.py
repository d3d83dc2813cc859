import pytest

from keras_tfopt.config import quantities


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.9, 0.9), ("90%", 0.9), ("12.5 %", 0.125), ("0.3", 0.3), (1, 1.0)],
)
def test_ratio(value, expected):
    assert quantities.parse_ratio(value) == pytest.approx(expected)


@pytest.mark.parametrize("value", [90, "120%", -0.1, True, "most", None, "90"])
def test_no_ratio(value):
    with pytest.raises(ValueError, match="a share from 0 to 1"):
        quantities.parse_ratio(value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (4096, 4096),
        ("4096", 4096),
        ("512 MiB", 512 * 2**20),
        ("512mib", 512 * 2**20),
        ("2GB", 2 * 10**9),
        ("1.5KiB", 1536),
    ],
)
def test_bytes(value, expected):
    assert quantities.parse_bytes(value) == expected


@pytest.mark.parametrize("value", ["2 parsecs", "-1MB", -1, True, None, ""])
def test_no_bytes(value):
    with pytest.raises(ValueError, match="a number of bytes"):
        quantities.parse_bytes(value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(3, 3), ("30s", 30), ("5m", 300), ("1.5 h", 5400), ("250ms", 0.25)],
)
def test_seconds(value, expected):
    assert quantities.parse_seconds(value) == expected


@pytest.mark.parametrize("value", ["5 fortnights", 0, "0s", False, None])
def test_no_seconds(value):
    with pytest.raises(ValueError, match="a positive number of seconds"):
        quantities.parse_seconds(value)
