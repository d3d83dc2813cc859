"""The tests of Keras that cannot pass with our classes, and why."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Listed:
    """A test that fails with our classes.

    Attributes:
        test: String. Its name, as the file of passing tests has it.
        reason: String.
        modes: The modes in which it fails.
    """

    test: str
    reason: str
    modes: tuple[str, ...] = ("whole", "1", "2")


_SEQUENTIAL = "keras.src.models.sequential_test::SequentialTest::test_"
_INNER_CLASS = (
    "Asserts the class of the model that Sequential makes inside of itself, "
    "which is Keras' own; the name `Functional` in the test is ours."
)

LISTED = (
    Listed(_SEQUENTIAL + "basic_flow_deferred", _INNER_CLASS),
    Listed(
        _SEQUENTIAL + "basic_flow_with_functional_model_as_first_layer",
        _INNER_CLASS,
    ),
    Listed(_SEQUENTIAL + "basic_flow_with_input", _INNER_CLASS),
    Listed(
        _SEQUENTIAL + "basic_flow_with_sequential_model_as_first_layer",
        _INNER_CLASS,
    ),
    Listed(_SEQUENTIAL + "legacy_flow_with_input_shape", _INNER_CLASS),
)
