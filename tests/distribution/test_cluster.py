"""TF_CONFIG: what is wrong is named."""

import json

import pytest

from keras_tfopt.distribution import parse_tf_config

WORKERS = {"worker": ["a:1", "b:1"]}
TASK = {"type": "worker", "index": 0}


def config(cluster=WORKERS, task=TASK):
    return json.dumps({"cluster": cluster, "task": task})


@pytest.mark.parametrize("text", [None, "", "  ", "{}"])
def test_no_cluster(text):
    assert parse_tf_config(text) is None


def test_workers():
    parsed = parse_tf_config(config(task={"type": "worker", "index": "1"}))
    assert parsed.workers == ("a:1", "b:1")
    assert (parsed.task_type, parsed.task_index) == ("worker", 1)
    assert not parsed.is_chief and not parsed.has_parameter_servers
    assert parse_tf_config(config()).is_chief


def test_chief_and_parameter_servers():
    cluster = {"worker": ["a:1"], "chief": ["c:1"], "ps": ["[::1]:2"]}
    parsed = parse_tf_config(config(cluster))
    assert parsed.workers == ("c:1", "a:1")
    assert not parsed.is_chief and parsed.has_parameter_servers
    chief = {"type": "chief", "index": 0}
    assert parse_tf_config(config(cluster, chief)).is_chief
    evaluator = {"type": "evaluator", "index": 0}
    assert not parse_tf_config(config(cluster, evaluator)).is_chief


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("{", "TF_CONFIG. .*JSON"),
        ("[]", "TF_CONFIG. .*an object"),
        ('{"task": {}}', "field `cluster`. Received: None"),
        (config({}), "field `cluster`"),
        (config({"workers": ["a:1"]}), "`cluster.workers`.*worker, ps"),
        (config({"worker": "a:1"}), "`cluster.worker`. Received: 'a:1'"),
        (config({"worker": []}), "`cluster.worker`"),
        (config({"worker": ["a:1", 2]}), r"`cluster.worker\[1\]`"),
        (config({"worker": ["a"]}), r"`cluster.worker\[0\]`.*port"),
        (config({"worker": ["a:0"]}), r"`cluster.worker\[0\]`.*65535"),
        (config({"worker": ["a:65536"]}), r"`cluster.worker\[0\]`"),
        (config({"worker": [":1"]}), r"`cluster.worker\[0\]`"),
        (config({"worker": ["http://a:1"]}), r"`cluster.worker\[0\]`"),
        (config({"worker": ["a:1", "a:1"]}), r"worker\[1\]`.*worker\[0\]"),
        (config({"chief": ["a:1", "b:1"]}), "`cluster.chief`.*one chief"),
        (config({"ps": ["a:1"]}), "`cluster`.*chief or worker"),
        (config(task=None), "`task`"),
        (config(task={"index": 0}), "`task.type`. Received: None.*worker"),
        (config(task={"type": "chief", "index": 0}), "`task.type`"),
        (config(task={"type": "worker"}), "`task.index`.*integer"),
        (config(task={"type": "worker", "index": True}), "`task.index`"),
        (config(task={"type": "worker", "index": 2}), "`task.index`.*0 to 1"),
        (config(task={"type": "worker", "index": -1}), "`task.index`"),
    ],
)
def test_invalid(text, field):
    with pytest.raises(ValueError, match=f"{field}"):
        parse_tf_config(text)
