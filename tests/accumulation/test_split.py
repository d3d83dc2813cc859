"""Splitting a batch of any structure into rows, and its partition sizes."""

import numpy as np
import pytest
import tensorflow as tf

from keras_tfopt.accumulation import split

X = np.arange(14, dtype="float32").reshape(7, 2)


def sizes_of(partition):
    """Returns the rows of each micro-batch, as `bounds` gives them."""
    return [
        int(partition.bounds(tf.constant(index))[1])
        for index in range(int(partition.count))
    ]


def starts_of(partition):
    """Returns the first row of each micro-batch."""
    return [
        int(partition.bounds(tf.constant(index))[0])
        for index in range(int(partition.count))
    ]


def dense(leaf):
    """Returns a tensor of any kind as nested lists."""
    if isinstance(leaf, tf.SparseTensor):
        leaf = tf.sparse.to_dense(leaf)
    if isinstance(leaf, tf.RaggedTensor):
        return leaf.to_list()
    return leaf.numpy().tolist()


@pytest.mark.parametrize(
    ("rows", "steps", "expected"),
    [
        (12, 4, [3, 3, 3, 3]),
        (10, 4, [3, 3, 2, 2]),
        (7, 3, [3, 2, 2]),
        (5, 1, [5]),
        (3, 8, [1, 1, 1]),
        (1, 4, [1]),
        (0, 4, []),
    ],
)
@pytest.mark.parametrize("as_tensors", [False, True])
def test_partition_by_count(rows, steps, expected, as_tensors):
    if as_tensors:
        rows, steps = tf.constant(rows), tf.constant(steps)
    partition = split.partition_by_count(rows, steps)
    assert sizes_of(partition) == expected
    assert starts_of(partition) == [0, *np.cumsum(expected)][: len(expected)]


@pytest.mark.parametrize(
    ("rows", "size", "expected"),
    [
        (12, 4, [4, 4, 4]),
        (10, 4, [4, 4, 2]),
        (9, 4, [4, 4, 1]),
        (3, 8, [3]),
        (1, 1, [1]),
        (3, 1, [1, 1, 1]),
        (0, 4, []),
    ],
)
@pytest.mark.parametrize("as_tensors", [False, True])
def test_partition_by_size(rows, size, expected, as_tensors):
    if as_tensors:
        rows, size = tf.constant(rows), tf.constant(size)
    partition = split.partition_by_size(rows, size)
    assert sizes_of(partition) == expected
    assert starts_of(partition) == [0, *np.cumsum(expected)][: len(expected)]


def test_every_partition_covers_its_rows_once():
    for rows in range(0, 20):
        for number in range(1, 22):
            by_count = split.partition_by_count(rows, number)
            by_size = split.partition_by_size(rows, number)
            for partition in (by_count, by_size):
                first = partition.first_count * partition.first_size
                second = partition.second_count * partition.second_size
                assert first + second == rows
            assert by_count.count == min(number, rows)
            assert by_size.count == -(-rows // number)


@pytest.mark.parametrize("rows", [0, 1, 5, 10, 12])
def test_static_runs_visit_the_same_rows(rows):
    for partition in (
        split.partition_by_count(rows, 4),
        split.partition_by_size(rows, 4),
    ):
        visited = [
            tuple(int(part) for part in run.bounds(tf.constant(index)))
            for run in partition.runs()
            for index in range(run.count)
        ]
        assert visited == list(
            zip(starts_of(partition), sizes_of(partition), strict=True)
        )


def test_dynamic_partition_is_one_run():
    partition = split.partition_by_count(tf.constant(10), tf.constant(4))
    assert partition.runs() == [partition]


def nest():
    """Returns a batch of seven rows with every kind of leaf."""
    return {
        "dense": tf.constant(X),
        "list": [tf.range(7), None],
        "nested": {"pair": (tf.constant(X[:, :1]), {"deep": tf.range(7)})},
        "ragged": tf.RaggedTensor.from_row_lengths(
            tf.range(9), [2, 0, 3, 1, 0, 2, 1]
        ),
        "sparse": tf.sparse.from_dense(np.where(X % 3 == 0, X, 0)),
        "scalar": tf.constant(0.5),
        "absent": None,
    }


ROW_LEAVES = [
    lambda batch: batch["dense"],
    lambda batch: batch["list"][0],
    lambda batch: batch["nested"]["pair"][0],
    lambda batch: batch["nested"]["pair"][1]["deep"],
    lambda batch: batch["ragged"],
    lambda batch: batch["sparse"],
]


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("steps", [1, 3, 7, 9])
def test_micro_batches_join_to_the_batch(steps, in_graph):
    batch = nest()
    take = tf.function(split.take_rows) if in_graph else split.take_rows
    partition = split.partition_by_count(tf.constant(7), tf.constant(steps))
    parts = [
        take(batch, *partition.bounds(tf.constant(index)))
        for index in range(int(partition.count))
    ]
    for leaf in ROW_LEAVES:
        joined = [row for part in parts for row in dense(leaf(part))]
        assert joined == dense(leaf(batch))
    for part in parts:
        assert float(part["scalar"]) == 0.5
        assert part["absent"] is None
        assert part["list"][1] is None


def test_static_size_gives_static_rows():
    shapes = []

    @tf.function
    def take(batch, start):
        part = split.take_rows(batch, start, 3)
        shapes.append((part["dense"].shape, part["ragged"].shape))

    take(nest(), tf.constant(2))
    assert shapes[0][0] == (3, 2)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_inner_dimensions_stay_static_in_a_graph(kind):
    leaf = nest()[kind]
    spec = tf.type_spec_from_value(leaf)
    relaxed = type(spec)([None, 2], spec.dtype)
    shapes = []

    def take(leaf, start, size):
        shapes.append(split.take_rows(leaf, start, size).shape.as_list())

    scalar = tf.TensorSpec((), tf.int32)
    tf.function(take).get_concrete_function(relaxed, scalar, scalar)
    assert shapes == [[None, 2]]


def test_unknown_rank_is_sliced_by_rows():
    @tf.function(
        input_signature=[tf.TensorSpec(None), tf.TensorSpec((), "int32")]
    )
    def take(leaf, size):
        assert leaf.shape.rank is None
        return split.count_rows(leaf), split.take_rows(leaf, 1, size)

    rows, part = take(tf.constant(X), tf.constant(2))
    assert int(rows) == 7
    assert dense(part) == X[1:3].tolist()


@pytest.mark.parametrize("key", ["dense", "ragged", "sparse"])
def test_rows_are_counted_by_the_first_leaf_that_has_any(key):
    batch = {"a": None, "b": tf.constant(1.0), "c": nest()[key]}
    rows = split.count_rows(batch)
    assert int(rows) == 7
    assert rows.dtype == tf.int32


@pytest.mark.parametrize("function", [split.count_rows, split.check_rows])
def test_a_batch_without_rows_is_refused(function):
    with pytest.raises(ValueError, match="no rows") as error:
        function((tf.constant(1.0), None))
    message = str(error.value)
    assert "accumulation_steps" in message and "microbatch_size" in message
    assert "shape ()" in message and "None" in message


def test_equal_rows_pass_the_check():
    split.check_rows((nest(), tf.range(7), None))


@pytest.mark.parametrize(
    ("batch", "listing"),
    [
        ((tf.zeros((4, 2)), tf.zeros((3,))), "x: 4, y: 3"),
        (
            ({"a": tf.zeros((4, 2)), "b": tf.zeros((5,))}, tf.zeros((4,))),
            "x['a']: 4, x['b']: 5, y: 4",
        ),
        (
            (tf.zeros((4,)), [tf.zeros((4,)), tf.zeros((2,))], tf.zeros((4,))),
            "x: 4, y[0]: 4, y[1]: 2, sample_weight: 4",
        ),
        (
            ((nest()["ragged"], nest()["sparse"]), tf.zeros((2,))),
            "x[0]: 7, x[1]: 7, y: 2",
        ),
        ({"a": tf.zeros((4,)), "b": tf.zeros((1,))}, "x['a']: 4, x['b']: 1"),
        (
            ({"a": (tf.zeros((4,)), {"c": tf.zeros((1,))})},),
            "x['a'][1]['c']: 1",
        ),
    ],
    ids=str,
)
def test_rows_that_disagree_are_named(batch, listing):
    with pytest.raises(
        ValueError, match="leading dimensions disagree"
    ) as error:
        split.check_rows(batch)
    assert listing in str(error.value)
