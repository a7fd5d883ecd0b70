"""Numbers in the documents are those of the results files that they point to."""

import json
import math
import re
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from bsnn import zoo
from bsnn.cli import demo as demo_command
from bsnn.deploy.codec import read
from bsnn.deploy.inspection import inspect

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"


def result(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


def text(path: str) -> str:
    return (ROOT / path).read_text()


def extremes(values: Iterable[float]) -> str:
    found = sorted(values)
    return f"{found[0]:.1f} to {found[-1]:.1f}"


def demo(found: Any) -> list[str]:
    low, high = found["lowest_and_highest"]
    return [f"mean {found['mean_test_accuracy']:.3f} ({low:.3f} to {high:.3f})"]


def augmentation(found: Any) -> list[str]:
    rate = next(p["images_per_second"] for p in found["points"] if (p["method"], p["threads"]) == ("bsnn", 2))
    return [f"{rate // 1000},000 images per second", f"{found['ratio_to_kornia']['2']} times kornia's"]


def data_real(found: Any) -> list[str]:
    checks = found["checks"]
    assert all(check["passed"] for check in checks.values())
    assert max(checks["mel_power_against_librosa"]["largest_relative_difference"].values()) < 1e-6
    return ["CIFAR-10 layouts identical", "within 1e-6 of librosa"]


def survival(found: Any) -> list[str]:
    assert not any(part["differences"] for part in found["results"])
    return [f"at {sum(len(part['kills']) for part in found['results'])} random updates"]


def corruption(found: Any) -> list[str]:
    return [f"{found['counts']['refused by name, the one before used']:,} damaged checkpoints"]


def faults(found: Any) -> list[str]:
    survivors = [fault for fault in found["survivors"] if fault["kind"] != "by hand"]
    assert all(fault["reason"] for fault in found["survivors"])
    assert found["planted"] >= 300
    assert found["caught"] == found["planted"] - len(survivors) >= 0.95 * found["planted"]
    assert found["shams"][0] == 0
    caught, planted = found["by_hand"]
    return [f"{found['caught']} of {found['planted']} are caught, and {caught} of {planted} planted by hand"]


def room(found: Any) -> list[str]:
    said = []
    for row in (found["augmentation"][name] for name in ("with", "without")):
        clean, noisy = (row["test_words"][name] for name in ("as recorded", "pink noise at 10 dB and random placement"))
        said.append(f"{noisy['points_lost']:.1f} {{}}below {{}}{clean['accuracy']:.3f}")
    kept = found["augmentation"]["with"]
    rejected = min(kept["rejected"][name] for name in ("white noise", "digital silence"))
    return [
        said[0].format("points ", "the "),
        said[1].format("", ""),
        f"{rejected:.0%} are rejected".replace("%", " %"),
        f"{100 * kept['words_kept']:.1f} % of the words pass",
    ]


def before_after(found: Any) -> list[str]:
    plain, eight = found["points"]
    (low, high), (low8, high8) = (point["time_ratio_lowest_and_highest"] for point in (plain, eight))
    return [
        f"{plain['time_ratio']:.2f} times the time of the processor ({low:.2f} to {high:.2f} in {found['repetitions']} "
        f"pairs), {plain['bytes_ratio']:.2f} times the memory",
        f"with 8-bit momentum {eight['time_ratio']:.2f} ({low8:.2f} to {high8:.2f}) and {eight['bytes_ratio']:.2f}",
    ]


def behavior(found: Any) -> list[str]:
    return [f"all {len(found['digests'])} cases are the same"]


def two_processes(found: Any) -> list[str]:
    double = next(part for part in found["results"] if part["dtype"] == "float64")
    return [f"{double['flip_steps']} updates", f"{double['flips_that_differ']} flips differ"]


def inference(found: Any) -> list[str]:
    def ratios(network: str, kernel: str) -> str:
        points = [p for p in found["points"] if (p["network"], p["kernel"], p["threads"]) == (network, kernel, 1)]
        return extremes(p["ratio"] for p in points)

    random, rates = "random VGG-11 at 15%", {p["firing_rate"] for p in found["points"] if p["network"] == "trained"}
    return [
        f"{ratios(random, 'avx512')} times as fast with AVX-512, {ratios(random, 'avx2')} with AVX2",
        *(f"{100 * rate:.1f} % firing, {ratios('trained', 'avx512')} with AVX-512" for rate in rates),
    ]


def deployed(found: Any) -> list[str]:
    networks = found["networks"].values()
    wrong = sum(sum(n["spikes_that_differ"].values()) + sum(n["outputs_that_differ"].values()) for n in networks)
    wrong += sum(n["c99_membranes_and_outputs_that_differ"] for n in networks)
    lost = [abs(n["accuracy_deployed"] - n["accuracy_trained"]) for n in networks if "accuracy_trained" in n]
    return [f"{wrong} spikes or outputs differ", f"within {100 * max(lost):.2f} points"]


def threads(found: Any) -> list[str]:
    gains = found["gain_of_two_threads"]["update"], found["gain_of_two_processes"]
    huge, small = (found["peak_bytes"][way] / 1e6 for way in ("1 thread", "1 thread, small pages"))
    return [
        "{:.2f} times as many; two runs of one thread each {:.2f} times".format(*gains),
        f"{found['share_of_time_with_huge_pages']:.2f} times the time of an update, {huge:.0f} MB at its peak instead "
        f"of {small:.0f}",
    ]


def cifar10_recipes(found: Any) -> list[str]:
    words = []
    for name, row in found["recipes"].items():
        accuracies, deployed, minutes = (
            " and ".join(format(run[key], digits) for run in row["runs"])
            for key, digits in (("test_accuracy", ".4f"), ("deployed_accuracy", ".4f"), ("processor_minutes", ".0f"))
        )
        seeds = " and ".join(str(run["seed"]) for run in row["runs"])
        processes = {run["processes"] for run in row["runs"]}
        by = {1: "on one thread", 2: "on two processes of one thread each"}[processes.pop()]
        assert not processes
        several = len(row["runs"]) > 1
        mean = f"mean {row['mean_test_accuracy']:.4f} ({accuracies})" if several else accuracies
        words += [
            f"CIFAR-10 by `{name}`, {by}, all test images, seed{'s' * several} {seeds} | {mean} after {minutes} "
            "minutes of processor time",
            f"; as model files of {row['runs'][0]['bytes'] / 1000:.0f} kB {deployed} |",
        ]
    return words


def mutations(found: Any) -> list[str]:
    assert found["crashes"] == 0
    return [f"{found['files']:,} mutated model files"]


def migration(found: Any) -> list[str]:
    networks = found["networks"].values()
    wrong, spikes = (sum(n[key] for n in networks) for key in ("spikes_that_differ", "spikes"))
    apart = {p: max(n["largest_gradient_difference"] for name, n in found["networks"].items() if name.startswith(p))
             for p in ("spikingjelly", "snntorch")}  # fmt: skip
    return [
        f"{len(networks)} networks: {wrong} of {spikes:,} spikes differ",
        f"gradients by at most {apart['spikingjelly']:.0e} and {apart['snntorch']:.0e} of the largest",
    ]


def small_recipes(found: Any) -> list[str]:
    rows = found["recipes"].values()
    words = [f"{row['mean_test_accuracy']:.3f} against {row['baselines']['logistic_regression']:.3f}" for row in rows]
    carried = found["recipes"]["speech-commands-small"]["with_settings_of_cifar10_small"]
    mean = statistics.mean(run["test_accuracy"] for run in carried)
    now = result("budgets")["sound"]["budgets"]["none"]["mean_test_accuracy"]
    return [*words, f"| {mean:.3f}, where `speech-commands-small` as it is now has {now:.3f} (three seeds)"]


def sizes(found: Any) -> list[str]:
    networks = found["networks"].values()
    return [
        ", ".join(f"{n['real_bytes'] / 1e6:.2f} → {n['stored_bytes'] / 1e6:.2f} MB" for n in networks),
        f"; {found['vgg11_model_file_bytes'] / 1e6:.2f} MB",
    ]


def device(found: Any) -> list[str]:
    rows = [found["networks"][name] for name in ("digits", "speech-commands-small", "vgg11")]
    ram, flash = ([f"{row[key]:,}" for row in rows] for key in ("ram_bytes", "flash_bytes"))
    return [f"{ram[0]}, {ram[1]} and {ram[2]} bytes", f"flash {flash[0]}, {flash[1]} and {flash[2]}"]


def budgets(found: Any) -> list[str]:
    words = {
        "none": "without a budget",
        "16k": "in 16 KB of RAM",
        "64k": "in 64 KB",
        "256k": "in 256 KB",
        "128k-stream": "as a stream in 128 KB",
    }
    return [
        f"{row['mean_test_accuracy']:.3f} {words[name]}"
        for kind in found.values()
        for name, row in kind["budgets"].items()
    ]


def int8(found: Any) -> list[str]:
    ours, rows = result("budgets")["sound"]["budgets"]["16k"], found["networks"]
    layers, ram, both, separable = (f"{row['mean_int8_test_accuracy']:.3f}" for row in rows.values())
    return [
        f"ours {ours['mean_test_accuracy']:.3f}",
        f"int8 {ram} in as much RAM, {both} and {separable} in as much RAM and flash",
        f"{layers} with the same layers",
    ]


def sound(found: Any) -> list[str]:
    assert set(found["c_differs_from_numpy"].values()) == {0}
    real, whole, stream = (100 * share for share in found["accuracy"].values())
    changed, heard = found["predictions_changed"], found["listening"]
    return [
        f"{found['words']} words: {real:.1f} % and {whole:.1f} %, {changed} predictions changed",
        f"{stream:.1f} % within a stream",
        f"{heard['heard']} of {heard['words']} heard, and {heard['heard elsewhere']} where there was none",
    ]


def cifar10_methods(found: Any) -> list[str]:
    accuracy, methods = found["full_recipe"]["test_accuracy"], found["methods"]
    low, high = accuracy["lowest_and_highest"]
    means = [f"{methods[name]['test_accuracy']['mean']:.3f}" for name in ("tbso", "bso", "latent", "real")]
    lost = [f"{points:.2f}" for points in found["eight_bits"]["points_lost_by_seed"].values()]
    deviation = max(method["test_accuracy"]["standard_deviation"] for method in methods.values())
    minutes = [f"{run['train_minutes']:.0f}" for run in found["full_recipe"]["runs"]]
    return [
        f"mean {accuracy['mean']:.4f} ({low:.4f} and {high:.4f}), one thread each, {' and '.join(minutes)} minutes",
        f"{', '.join(means[:3])} and {means[3]}, standard deviations up to {100 * deviation:.1f} points",
        f"loses {', '.join(lost[:-1])} and {lost[-1]} points",
    ]


def ratio(found: Any, of: str, method: str, batch: int, against: str, length: int = 4) -> float:
    wanted = {"of": of, "method": method, "batch": batch, "against": against, "time_steps": length}
    (value,) = (r["ratio"] for r in found["ratios"] if wanted.items() <= r.items())
    return value


def training(found: Any) -> list[str]:
    peer = "spikingjelly-ottt"
    peaks = [f"{ratio(found, 'peak_bytes', 'tbso', batch, peer):.2f}" for batch in (32, 128)]
    times = [f"{1 / ratio(found, 'step_seconds', 'tbso', batch, peer):.2f}" for batch in (32, 128)]
    floor = [f"{ratio(found, 'step_seconds', 'tbso', batch, 'backward-floor'):.2f}" for batch in (32, 128)]
    return [
        f"{' and '.join(peaks)} times its peak memory",
        f"{' and '.join(times)} times as fast",
        f"{' and '.join(floor)} times the time of two plain backward convolutions",
    ]


def memory(found: Any) -> list[str]:
    ours = [f"{ratio(found, 'peak_bytes', 'tbso', 2, 'T = 1', length):.2f}" for length in (35, 1000)]
    theirs = [f"{ratio(found, 'peak_bytes', 'bptt', 2, 'T = 1', length):.1f}" for length in (35, 1000)]
    return [f"{' and '.join(ours)} times", f"BPTT with latent weights {' and '.join(theirs)}"]


def scaling(found: Any) -> list[str]:
    slopes = {(s["cost"], s["method"], s["over"]): f"{s['slope']:.2f}" for s in found["slopes"]}
    shown = text("docs/memory.md")
    for name in ("time_steps", "batch", "width", "depth"):
        figures = [slopes[cost, method, name] for cost in ("memory", "seconds") for method in ("tbso", "bptt")]
        assert f"| {name.replace('_', ' ')} | {' | '.join(figures)} |" in shown
    return [f"T^{slopes['memory', 'tbso', 'time_steps']}; BPTT T^{slopes['memory', 'bptt', 'time_steps']}"]


def figure4(found: Any) -> list[str]:
    peaks = {(p["method"], p["time_steps"]): p["peak_bytes"] for p in found["data"]}
    growth = {method: peaks[method, 35] / peaks[method, 1] for method in ("BPTT", "BSO", "T-BSO")}
    return [f"BPTT {growth['BPTT']:.1f} times, BSO and T-BSO {growth['BSO']:.2f} and {growth['T-BSO']:.2f}"]


def figure5(found: Any) -> list[str]:
    means = {(p["method"], p["time_steps"]): statistics.mean(p["accuracies"]) for p in found["data"]}

    def above(other: str) -> str:
        first, second, third = (f"{100 * (means['T-BSO', t] - means[other, t]):+.1f}" for t in (2, 4, 6))
        return f"{first}, {second} and {third}"

    return [f"{above('BSO')} points with the paper's γ", f"{above('BSO, γ = 4e-9')} with a γ that suits BSO"]


def regret(found: Any) -> list[str]:
    (held,) = re.findall(r"at most 0.1 above the claim in (\d+ of \d+) cases", found["notes"][0])
    return [f"in {held} cases"]


def gpu_roofline(found: Any) -> list[str]:
    assert found["what"].startswith("a prediction")
    shown = text("docs/gpu.md")
    times: dict[str, list[float]] = {}
    for point in found["points"]:
        times[point["way"]] = [gpu["seconds"] for gpu in point["gpus"].values()]
        spent = " | ".join(f"{1e3 * seconds:.1f} ms" for seconds in times[point["way"]])
        assert f"| {point['way']} | {point['launches']} | {point['bytes'] / 1e9:.2f} GB | {spent} |" in shown
    assert shown.count(" ms |\n") == len(times)
    slow = [gpu["seconds_with_slow_host"] for gpu in found["points"][1]["gpus"].values()]
    assert f"row becomes {' and '.join(f'{1e3 * seconds:.1f} ms' for seconds in slow)}" in shown
    for kind in ("fp16_currents", "int16_currents", "fp16_traces"):
        assert f": {found['narrower'][f'saved_by_{kind}'] / 1e9:.2f} GB." in shown
    assert f"would keep {found['narrower']['memory_saved_by_int16_currents'] / 1e6:.0f} MB less" in shown
    fast, single = times["SpikingJelly's OTTT, TF32"], times["SpikingJelly's OTTT, single precision"]
    assert f"{times['bsnn, Triton'][0] / fast[0]:.1f} times slower" in shown
    ratios = [
        [f"{ours / theirs:.2f}" for ours, theirs in zip(times[way], peer, strict=True)]
        for way, peer in (("bsnn, Triton, --precision tf32", fast), ("bsnn, Triton", single))
    ]
    assert f"take {min(ratios[0] + ratios[1])} to {max(ratios[0] + ratios[1])} times as long" in shown
    return [f"in TF32 {' and '.join(ratios[0])} times", f"in single precision {' and '.join(ratios[1])} times"]


IN_REPRODUCE = (figure4, figure5, regret)
CLAIMS: dict[str, Callable[[Any], list[str]]] = {
    f"reproduce/{claim.__name__}" if claim in IN_REPRODUCE else claim.__name__: claim
    for claim in (
        demo, augmentation, data_real, survival, corruption, behavior, before_after, two_processes, inference, deployed,
        mutations, faults, migration, small_recipes, sizes, device, sound, room, budgets, int8, cifar10_methods,
        cifar10_recipes, threads,
        training, memory, scaling, gpu_roofline,
        *IN_REPRODUCE,
    )
}  # fmt: skip


def test_every_claim_of_the_benchmarks_is_in_its_results_file() -> None:
    rows = re.findall(r"^\| (?!claim|---)(.*) \|$", text("docs/benchmarks.md"), flags=re.MULTILINE)
    linked = defaultdict(str)
    for row in rows:
        (name,) = re.findall(r"`, \[results\]\(\.\./benchmarks/results/([\w/]+)\.json\)$", row)
        linked[name] += row
    assert linked.keys() == CLAIMS.keys()
    for name, claims in CLAIMS.items():
        for claim in claims(result(name)):
            assert claim in linked[name]


def test_what_quantizing_costs_cbp_is_what_was_measured() -> None:
    runs = result("constrained")["runs"]
    share, lost = min(run["share_near_a"] for run in runs), max(run["points_lost"] for run in runs)
    shown = " ".join(text("docs/compared.md").split())
    assert f"{math.floor(1000 * share) / 10} % or more of them within 5 %" in shown
    assert f"quantizing them costs at most {math.ceil(10 * lost) / 10} points" in shown


def test_the_table_of_devices_is_what_was_measured() -> None:
    shown = text("docs/deploy.md")
    for row in result("device")["networks"].values():
        numbers = [f"{row[key]:,}" for key in ("ram_bytes", "input_bytes", "stream_ram_bytes", "flash_bytes")]
        assert f"| {' | '.join(numbers)} | {row['instructions']['-Os'] / 1e6:.1f} million |" in shown


def each(values: list[float]) -> str:
    single = ", ".join(f"{value:.3f}" for value in values)
    return single if len(values) == 1 else f"{statistics.mean(values):.3f} ({single})"


def test_the_tables_of_budgets_and_of_int8_are_what_was_measured() -> None:
    shown, budgets = text("docs/deploy.md"), result("budgets")
    for row in (row for kind in budgets.values() for row in kind["budgets"].values()):
        right = [each([run[f"{split}_accuracy"] for run in row["runs"]]) for split in ("test", "validation")]
        taken = f"{row['ram_bytes']:,} | {row['flash_bytes']:,} | {row['instructions']['-Os'] / 1e6:.1f} million"
        assert f"| `{row['plan']}` | {' | '.join(right)} | {taken} |" in shown
    ours = budgets["sound"]["budgets"]["16k"]
    ram = ours["ram_bytes"] - ours["front_end_ram_bytes"]
    operations = (
        f"{ours['additions'] / 1e6:.1f} million additions, {ours['multiplications'] / 1e6:.1f} million products"
    )
    right = " | ".join(each([run[f"{split}_accuracy"] for run in ours["runs"]]) for split in ("test", "validation"))
    assert f"| {right} | {ram:,} | {ours['constant_bytes']:,} | {operations} |" in shown
    for row in result("int8")["networks"].values():
        right = " | ".join(each(row[f"int8_{split}_accuracy"]) for split in ("test", "validation"))
        operations = f"{row['multiplications'] / 1e6:.1f} million products and additions"
        assert f"| `{row['plan']}` | {right} | {row['ram_bytes']:,} | {row['flash_bytes']:,} | {operations} |" in shown


def test_the_energy_of_the_digits_is_what_inspect_says() -> None:
    found = inspect(read(zoo.path("digits")))
    ours, int8 = (f"{1e6 * found[key]:.2f} µJ" for key in ("energy_joules", "int8_energy_joules"))
    assert f"{ours} against {int8} in int8" in text("docs/deploy.md")


def test_the_headlines_of_the_readme_are_what_was_measured() -> None:
    memory, training, peer = result("memory"), result("training"), "spikingjelly-ottt"
    lengths = {method: ratio(memory, "peak_bytes", method, 2, "T = 1", 1000) for method in ("tbso", "bptt")}
    peak = ratio(training, "peak_bytes", "tbso", 128, peer)
    speed = 1 / ratio(training, "step_seconds", "tbso", 128, peer)
    accuracy = {name: f"{m['test_accuracy']['mean']:.3f}" for name, m in result("cifar10_methods")["methods"].items()}
    recipes = [result("cifar10_recipes")["recipes"][name] for name in ("cifar10-small", "cifar10-medium")]
    size, *_ = result("sizes")["networks"].values()
    engine = [p for p in result("inference")["points"] if p["network"] == "random VGG-11 at 15%"]
    ratios = extremes(p["ratio"] for p in engine if (p["kernel"], p["threads"]) == ("avx512", 1))
    (differ,) = re.findall(r"^\d+", deployed(result("deployed"))[0])
    shown = re.findall(r"^\| .* \| \[(.*)\]\(docs/benchmarks\.md#.*\) \|$", text("README.md"), flags=re.MULTILINE)
    assert shown == [
        f"{lengths['tbso']:.2f} times; BPTT {lengths['bptt']:.1f} times",
        f"{peak:.2f} times the memory, {speed:.2f} times as fast",
        f"{accuracy['tbso']}; latent weights {accuracy['latent']}, real weights {accuracy['real']}",
        *(
            f"{row['mean_test_accuracy']:.3f} after "
            f"{statistics.mean(run['processor_minutes'] for run in row['runs']):.0f} minutes"
            for row in recipes
        ),
        f"{size['real_bytes'] / 1e6:.2f} MB and {size['stored_bytes'] / 1e6:.2f} MB",
        f"{ratios} times as fast",
        differ,
    ]


def test_the_documentation_shows_the_demo_as_it_was_measured() -> None:
    assert f"```\n{demo_command.text(result('demo')['runs'][0])}\n```" in text("docs/training.md")


def test_docs_point_to_every_results_file() -> None:
    documents = "".join(text(path) for path in ("README.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))))
    for path in RESULTS.rglob("*.json"):
        assert path.relative_to(RESULTS).as_posix() in documents
    recordings = result("data_real")["checks"]["mel_power_against_librosa"]
    relative = max(recordings["largest_relative_difference"].values())
    assert f"to {relative:.0e} relative on {recordings['files']:,} real".replace("e-0", "e-") in text("docs/data.md")


def test_the_page_about_memory_shows_what_was_measured() -> None:
    shown = " ".join(text("docs/memory.md").split())
    digits, synthetic = result("momentum")
    last = min(line["one_minus_beta1"] for line in synthetic["lines"])
    lines = {
        kind: [line for line in synthetic["lines"] if line["momentum"] == kind] for kind in ("8", "8, even levels")
    }
    ends = {kind: [line for line in of_kind if line["one_minus_beta1"] == last] for kind, of_kind in lines.items()}
    full = statistics.mean(line["wrong_weights_in_32_bits"] for line in ends["8"])
    squares, even = (statistics.mean(line["wrong_weights"] for line in ends[kind]) for kind in lines)
    assert f"{full:.0%} of".replace("%", " %") in shown
    assert f"with 32 bits, {squares:.0%} with squares, {even:.0%} with even".replace("%", " %") in shown
    assert round(max(line["flips_against_32_bits"] for line in lines["8"])) == 14
    assert "fourteen times" in shown
    apart = max(abs(points) for seeds in digits["points_against_32_bits"].values() for points in seeds)
    assert f"within {apart:.1f} points" in shown
    training = result("training")
    per_weight = training["state_bytes_per_weight"]
    assert f"{per_weight['tbso-8']:.2f} bytes per weight, against {per_weight['tbso']:.2f} with 32 bits" in shown
    programs = [p["program_bytes"] for p in training["points"] if p["method"] == "tbso"]
    assert f"another {statistics.median(programs) / 1e6:.0f} MB" in shown


def test_the_page_of_results_is_what_the_files_give() -> None:
    command = [sys.executable, ROOT / "benchmarks" / "document.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    drawn = set(re.findall(r"\(figures/(.*?)\)", text("docs/results.md")))
    assert drawn == {file.name for file in (ROOT / "docs" / "figures").iterdir() if "scaling-" not in file.name}
