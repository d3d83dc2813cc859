import pytest

from keras_tfopt.telemetry.history import Distribution
from keras_tfopt.telemetry.history import History
from keras_tfopt.telemetry.history import Snapshot
from keras_tfopt.telemetry.signals import Age
from keras_tfopt.telemetry.signals import Average
from keras_tfopt.telemetry.signals import Increase
from keras_tfopt.telemetry.signals import Quantile
from keras_tfopt.telemetry.signals import Quotient
from keras_tfopt.telemetry.signals import Rate
from keras_tfopt.telemetry.signals import Share
from keras_tfopt.telemetry.signals import Value

GPU = (("device", "GPU:0"),)


def history(*rows, name="steps_total", labels=()):
    """Returns a history of `(time, value)`."""
    past = History()
    for time, value in rows:
        values = {} if value is None else {(name, labels): value}
        past.append(Snapshot(time, 0, values, {}))
    return past


def test_values_and_what_is_computed_from_them():
    past = history((0, 2.0), (30, 5.0), (60, 11.0))
    assert Value("steps_total").measure(past) == {(): 11.0}
    assert Increase("steps_total", 60).measure(past) == {(): 9.0}
    assert Increase("steps_total", 30).measure(past) == {(): 6.0}
    assert Rate("steps_total", 60).measure(past) == {(): 9.0 / 60}
    assert Average("steps_total", 30).measure(past) == {(): 8.0}
    assert Age("steps_total").measure(past) == {(): 49.0}


def test_unknown_values_give_nothing():
    empty = history((0, None), (30, None))
    one = history((0, None), (30, 4.0))
    for signal in (Value("a"), Rate("a"), Age("a"), Average("a", 60)):
        assert signal.measure(History()) == signal.measure(empty) == {}
    assert Rate("steps_total").measure(one) == {}
    assert Increase("steps_total", 60).measure(one) == {(): 0.0}


def test_share_and_quotient():
    past = History()
    values = {
        ("n", (("result", "good"),)): 3.0,
        ("n", (("result", "bad"),)): 1.0,
        ("a", GPU): 6.0,
        ("b", GPU): 4.0,
        ("c", GPU): 0.0,
    }
    past.append(Snapshot(0, 0, values, {}))
    assert Share("n", "result", "good").measure(past) == {(): 0.75}
    assert Share("x", "result", "good").measure(past) == {}
    assert Quotient(Value("a"), Value("b")).measure(past) == {GPU: 1.5}
    assert Quotient(Value("a"), Value("c")).measure(past) == {}
    assert Quotient(Value("a"), Value("n")).measure(past) == {}


def test_quantile_is_of_the_window_and_interpolated():
    past = History()
    for time, counts in ((0, (5, 0, 0)), (10, (5, 10, 0))):
        past.append(Snapshot(time, 0, {}, {"d": Distribution(counts, 1.0)}))
    bounds = (1.0, 2.0)
    assert Quantile("d", bounds, 0.5).measure(past) == {(): 1.5}
    assert Quantile("d", bounds, 0.95).measure(past) == {
        (): pytest.approx(1.95)
    }
    assert Quantile("d", bounds, 0.5, 5).measure(past) == {}


def test_old_snapshots_are_thinned_out_and_dropped():
    past = History(seconds=600)
    for time in range(2000):
        past.append(Snapshot(time, 0, {}, {}))
    kept = [snapshot.time for snapshot in past.within(10_000)]
    assert kept[-61:] == list(range(1939, 2000))
    assert 1390 <= kept[0] <= 1410
    assert len(kept) < 130
