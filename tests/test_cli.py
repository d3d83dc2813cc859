import json
import pathlib

import pytest
from typer import testing

from keras_tfopt import Optimization
from keras_tfopt import cli
from keras_tfopt._version import __version__
from keras_tfopt.benchmark import demo
from keras_tfopt.benchmark import digits
from keras_tfopt.benchmark import survival
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
def test_demo(tmp_path):
    process = subprocesses.run_cli(
        *("demo", "--quick", "--out", str(tmp_path)),
        TF_CPU_ALLOCATOR_USE_BFC=None,
        COLUMNS="140",
    )

    assert process.returncode == 0, process.stdout + process.stderr
    rows = rows_of_table(process.stdout)
    stock, split = rows[:2]
    assert stock[0] == "stock Keras, 256 at once"
    assert split[0] == "AccumModel, 32 at a time"
    for name, _, _, updates, seconds, peak in (stock, split):
        # Six batches an epoch, the last one short.
        assert updates == "30"
        assert float(seconds) > 0
        assert float(peak) > 0
        assert f"{name}: epoch 5/5, loss " in process.stdout
    # The same but for rounding, which training amplifies.
    assert float(split[1][:-1]) == pytest.approx(float(stock[1][:-1]), abs=2)
    # An eighth of the rows are in flight at a time.
    assert float(split[5]) < 0.6 * float(stock[5])
    # The allocator's own error, a kill, and what became of them.
    assert "out of memory with 64 of 64 rows at a time" in process.stdout
    assert "failed under XLA" in process.stdout
    assert "Training goes on from" in process.stdout
    assert "0 in any weight" in process.stdout
    (folder,) = tmp_path.iterdir()
    assert list((folder / "tensorboard").rglob("events.out.*"))
    assert "keras_tfopt_steps_total" in (folder / "training.prom").read_text()
    assert not (folder / "backups").exists()


def test_demo_without_scikit_learn_names_the_extra(invoke, monkeypatch):
    def load_digits(*, seed):
        raise MissingExtraError("pip install 'keras-tfopt[demo]'")

    monkeypatch.setattr(digits, "load_digits", load_digits)

    result = invoke("demo")

    assert result.exit_code == 2
    assert "pip install 'keras-tfopt[demo]'" in result.output


def test_demo_exits_according_to_the_results(invoke, monkeypatch, tmp_path):
    accuracies = [0.97, 0.99]
    difference = 0.0

    def run_demo(console, *, epochs, seed):
        assert (epochs, seed) == (40, 5)
        return [
            demo.TrainingResult("name", accuracy, 0.1, 6, 1.0, None)
            for accuracy in accuracies
        ]

    def run_survival(console, folder, *, seed, **size):
        assert (folder.parent, seed) == (tmp_path / "out", 5)
        return survival.Survival(
            limit_mib=54,
            restarts=1,
            stock_error="ResourceExhaustedError",
            changes=["failed under XLA: strings", "out of memory with 64 rows"],
            losses=[3.0, 2.0],
            expected_losses=[3.0, 2.0],
            difference=difference,
            bits_without_context=4.6,
        )

    monkeypatch.setattr(demo, "run_demo", run_demo)
    monkeypatch.setattr(survival, "run_survival", run_survival)
    arguments = ("demo", "--seed", "5", "--out", str(tmp_path / "out"))

    result = invoke(*arguments)
    assert result.exit_code == 0
    assert "tensorboard --logdir" in result.output
    difference = 1e-3
    result = invoke(*arguments)
    assert result.exit_code == 1
    assert "weights differ from the undisturbed ones" in result.output
    accuracies[1] = 0.9694
    result = invoke(*arguments)
    assert result.exit_code == 1
    assert "accuracy 96.94%, 97% required" in result.output


@pytest.mark.parametrize("arguments", [("--epochs", "9"), ("--seed", "-1")])
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
