import pytest

from keras_tfopt.config import ConfigurationError
from keras_tfopt.config import document


def parse(text):
    return document.parse_yaml(text, "run.yml")


def test_data_and_lines():
    parsed = parse("a:\n  b: 1\n  c: [2, 3]\n# none\nd: on\n")

    assert parsed.data == {"a": {"b": 1, "c": [2, 3]}, "d": True}
    assert parsed.line_of(("a", "b")) == 2
    assert parsed.line_of(("a", "c", 1)) == 3
    assert parsed.line_of(("d",)) == 5
    # What is not there is looked for around it.
    assert parsed.line_of(("a", "missing")) == 1


def test_empty():
    assert parse("").data is None


def test_merge_keys_and_what_stands_beside_them():
    parsed = parse("base: &base {x: 1, y: 2}\nderived:\n  <<: *base\n  y: 3\n")

    assert parsed.data["derived"] == {"x": 1, "y": 3}
    assert parsed.line_of(("derived", "y")) == 4


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("port: ${PORT}", 9090),
        ("port: '${PORT}'", "9090"),
        ("port: ${MISSING:-8080}", 8080),
        ("flag: ${MISSING:-true}", True),
        ("dir: ${HOME_DIR}/runs/${PORT}", "/data/runs/9090"),
        ("text: ${MISSING:-}", ""),
    ],
)
def test_environment_variables(monkeypatch, text, expected):
    monkeypatch.setenv("PORT", "9090")
    monkeypatch.setenv("HOME_DIR", "/data")
    monkeypatch.delenv("MISSING", raising=False)

    (value,) = parse(text).data.values()

    assert (value or "") == expected
    assert value is None or type(value) is type(expected)


def test_variable_that_is_not_set(monkeypatch):
    monkeypatch.delenv("MISSING", raising=False)
    with pytest.raises(ConfigurationError, match=r"run.yml, line 2.*MISSING"):
        parse("a: 1\nb: ${MISSING}\n")


def test_key_twice():
    with pytest.raises(
        ConfigurationError, match=r"line 3: the key 'b'.*line 2"
    ):
        parse("a:\n  b: 1\n  b: 2\n")


def test_tag_makes_no_object(tmp_path):
    marker = tmp_path / "made"
    with pytest.raises(ConfigurationError, match="line 1: the tag .*mkdir"):
        parse(f"a: !!python/object/apply:os.mkdir ['{marker}']")
    assert not marker.exists()


def test_no_yaml():
    with pytest.raises(ConfigurationError, match="run.yml is no YAML"):
        parse("a: {")
