import dataclasses
import json
import math
import pathlib

import pytest
from typer import testing

from keras_tfopt import Optimization
from keras_tfopt import cli
from keras_tfopt._version import __version__
from keras_tfopt.benchmark import demo
from keras_tfopt.benchmark import digits
from keras_tfopt.benchmark import limited
from keras_tfopt.errors import MissingExtraError
from tests import subprocesses


@pytest.fixture
def invoke(monkeypatch):
    """Runs the command line in this process."""
    # Kept out of the environment of later tests.
    monkeypatch.setenv("TF_CPU_ALLOCATOR_USE_BFC", "true")
    return lambda *arguments: testing.CliRunner().invoke(cli.app, arguments)


def rows_of_table(printed):
    """Returns the cells of each row of a printed rich table."""
    return [
        [cell.strip() for cell in line.strip("│").split("│")]
        for line in printed.splitlines()
        if line.startswith("│")
    ]


@pytest.mark.slow
def test_demo_compares_stock_keras_and_accum_model():
    process = subprocesses.run_cli(
        "demo", "--epochs", "30", TF_CPU_ALLOCATOR_USE_BFC=None, COLUMNS="140"
    )

    assert process.returncode == 0, process.stdout + process.stderr
    stock, split, free, short, recovering = rows_of_table(process.stdout)
    assert stock[0] == "stock Keras, 256 at once"
    assert split[0] == "AccumModel, 32 at a time"
    for _, accuracy, _, updates, seconds, peak in (stock, split):
        assert float(accuracy.removesuffix("%")) >= 97
        # Six batches an epoch, the last one short.
        assert updates == "180"
        assert float(seconds) > 0
        assert float(peak) > 0
    # The same but for rounding, which training amplifies.
    assert float(split[1][:-1]) == pytest.approx(float(stock[1][:-1]), abs=0.6)
    assert float(split[2]) == pytest.approx(float(stock[2]), rel=0.05)
    # An eighth of the rows are in flight at a time.
    assert float(split[5]) < 0.6 * float(stock[5])
    for name in (stock[0], split[0]):
        for epoch in range(3, 31, 3):
            assert f"{name}: epoch {epoch}/30, loss " in process.stdout
    # Under a limit.
    assert short[-1] == "out of memory"
    assert short[1] == "-"
    assert recovering[-1].endswith("s lost")
    assert float(recovering[5]) < float(free[5])
    assert recovering[3] == free[3] == "30"
    assert float(recovering[1][:-1]) == pytest.approx(
        float(free[1][:-1]), abs=0.3
    )
    assert f"{recovering[0]}: epoch 30/30, loss " in process.stderr


@pytest.mark.slow
def test_demo_fails_when_it_learns_too_little():
    process = subprocesses.run_cli("demo", "--epochs", "1", COLUMNS="100")

    assert process.returncode == 1, process.stdout + process.stderr
    assert len(rows_of_table(process.stdout)) == 2
    for name in ("stock Keras, 256 at once", "AccumModel, 32 at a time"):
        assert f"{name}: accuracy " in process.stdout
    assert process.stdout.count(" 97% required") == 2


def test_demo_without_scikit_learn_names_the_extra(invoke, monkeypatch):
    def load_digits(*, seed):
        raise MissingExtraError("pip install 'keras-tfopt[demo]'")

    monkeypatch.setattr(digits, "load_digits", load_digits)

    result = invoke("demo")

    assert result.exit_code == 2
    assert "pip install 'keras-tfopt[demo]'" in result.output


def test_demo_exits_according_to_the_results(invoke, monkeypatch):
    accuracies = [0.97, 0.99, 0.9]

    def run_demo(console, *, epochs, seed):
        assert (epochs, seed) == (3, 5)
        return [
            demo.TrainingResult("name", accuracy, 0.1, 6, 1.0, None)
            for accuracy in accuracies[:2]
        ]

    def run_limited_demo(console, *, epochs, seed):
        assert (epochs, seed) == (3, 5)
        free = demo.TrainingResult("free", 0.9, 0.3, 3, 1.0, 9)
        return [
            free,
            dataclasses.replace(free, accuracy=math.nan, remark="stopped"),
            dataclasses.replace(free, accuracy=accuracies[2], remark="split"),
        ]

    monkeypatch.setattr(demo, "run_demo", run_demo)
    monkeypatch.setattr(limited, "run_limited_demo", run_limited_demo)

    assert invoke("demo", "--epochs", "3", "--seed", "5").exit_code == 0
    accuracies[2] = 0.88
    result = invoke("demo", "--epochs", "3", "--seed", "5")
    assert result.exit_code == 1
    assert "accuracy after recovery differs" in result.output
    accuracies[1] = 0.9694
    result = invoke("demo", "--epochs", "3", "--seed", "5")
    assert result.exit_code == 1
    assert "accuracy 96.94%, 97% required" in result.output


@pytest.mark.parametrize("arguments", [("--epochs", "0"), ("--seed", "-1")])
def test_demo_refuses_bad_options(invoke, arguments):
    result = invoke("demo", *arguments)
    assert result.exit_code == 2
    assert arguments[0] in result.output


def test_fit_plan_says_which_sources_there_are(invoke):
    result = invoke("fit-plan", "nothing", "--limit-mib", "30")
    assert result.exit_code == 2
    assert "MLP, convnet, transformer" in result.output


def test_version(invoke):
    result = invoke("--version")
    assert result.exit_code == 0
    assert result.output == f"keras-tfopt {__version__}\n"


def test_help_lists_the_commands(invoke):
    result = invoke("--help")
    assert result.exit_code == 0
    assert "demo" in result.output


def test_explain_says_what_a_configuration_does(invoke, tmp_path):
    path = tmp_path / "run.yml"
    path.write_text("tensorflow_optimization: {memory: {plan_ahead: true}}")

    result = invoke("explain", str(path))

    assert result.exit_code == 0
    assert "memory.out_of_memory_recovery" in result.output


def test_explain_names_the_line(invoke, tmp_path):
    path = tmp_path / "run.yml"
    path.write_text("tensorflow_optimization:\n  memry: {}\n")

    result = invoke("explain", str(path))

    assert result.exit_code == 2
    assert f"{path}, line 2: unknown key" in result.output
    assert invoke("explain", str(tmp_path / "none.yml")).exit_code == 2


def test_schema_is_json(invoke):
    schema = json.loads(invoke("schema").output)
    assert "tensorflow_optimization" in schema["properties"]


def test_tune_writes_what_it_chose(invoke, tmp_path):
    chosen = tmp_path / "tuned.yml"

    result = invoke(
        "tune",
        "tests.benchmark.test_source:own_model",
        *("--budget-seconds", "1", "--out", str(chosen), "--json"),
    )

    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["rows"]
    assert rows[0]["name"] == "baseline"
    assert Optimization.from_yaml(chosen).configuration.compilation is not None


def test_tune_names_what_it_does_not_know(invoke):
    result = invoke("tune", "nothing")
    assert result.exit_code == 2
    assert "module:function" in result.output


def test_launch_ends_with_the_code_of_its_worker(invoke):
    command = ("--", "bash", "-c", "echo $TF_CONFIG; exit 7")
    result = invoke("launch", "--workers", "2", *command)
    assert result.exit_code == 7
    assert '[worker 1] {"cluster"' in result.output


def test_launch_of_what_is_not_there(invoke):
    assert invoke("launch", "--", "no-such-program").exit_code == 2
    other = invoke("launch", "--hosts", "a,b", "--rank", "2", "--", "true")
    assert other.exit_code == 2


def test_manifest(invoke):
    assert "kind: Job" in invoke("manifest", "kubernetes", "--", "x").output
    assert "#SBATCH" in invoke("manifest", "slurm", "--", "x").output
    assert invoke("manifest", "other", "--", "x").exit_code == 2


def test_dashboards_writes_files_for_the_given_exporters(invoke, tmp_path):
    result = invoke("dashboards", "--out", str(tmp_path), "--target", "a:1")
    assert result.exit_code == 0
    paths = [pathlib.Path(line) for line in result.output.split()]
    assert all(path.is_file() for path in paths)
    scrape = (tmp_path / "prometheus" / "prometheus.yml").read_text()
    assert "- a:1" in scrape


@pytest.mark.slow
def test_trace_names_the_layers():
    process = subprocesses.run_cli("trace", "MLP", COLUMNS="120")
    assert process.returncode == 0, process.stderr
    assert "MiB at the peak of a step" in process.stdout
    assert "dense_5" in process.stdout


def test_parameter_servers_are_started_on_one_host(invoke):
    result = invoke(
        "launch", "--hosts", "a,b", "--parameter-servers", "1", "--", "true"
    )
    assert result.exit_code == 2
    assert "Received: --hosts a,b" in result.output
