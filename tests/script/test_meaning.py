"""What the numbers of a script mean, on sources that do with them what real trainings do."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent, indent

import pytest

from ddplaunch.script.flow import UNREAD
from ddplaunch.script.script_report import LOCAL_WORLD, WORLD, ScriptReport
from tests.golden import sections
from tests.script.test_declared import option, read


def clauses(report: ScriptReport) -> dict[str, str]:
    """What the report says of each number that no option takes."""
    return {each.meaning: each.clause for each in reversed(report.instead)}


def script(declarations: str, body: str) -> str:
    """Return a training with the options of ``declarations`` and ``body`` in its main function."""
    head = "import argparse, math, os\nimport torch\nimport torch.distributed as dist\n"
    return (
        f"{head}p = argparse.ArgumentParser()\n{dedent(declarations)}\nargs = p.parse_args()\n"
        f"def main(args):\n{indent(dedent(body), '    ')}\nmain(args)\n"
    )


BATCH = 'p.add_argument("--batch-size", type=int, default=64)'
HELP = 'p.add_argument("--batch-size", type=int, help="%s")'
AND = '\np.add_argument("--%s", type=int)'
OF_LAUNCHER = """
if args.launcher == 'none':
    total_gpus = 1
else:
    total_gpus, rank = setup(args.launcher)
args.batch_size //= total_gpus
"""
LOADED = "loader = DataLoader(data, batch_size=args.batch_size)"


@pytest.mark.parametrize(
    ("declaration", "body", "meaning", "because"),
    [
        (BATCH, "total_gpus, rank = setup()\nargs.batch_size //= total_gpus", "total_batch_size", "divides it"),
        (BATCH, 'local = args.batch_size / int(os.environ["WORLD_SIZE"])', "total_batch_size", "divides it"),
        (BATCH, "n = dist.get_world_size()\nargs.batch_size //= n", "total_batch_size", "divides it"),
        (BATCH, "local = args.batch_size // dp_size", "total_batch_size", "divides it by the world size"),
        (BATCH, "n = 40\nn //= args.world_size\nlog(args.batch_size * n)", "batch_size", ""),
        (BATCH, "b, n = args.batch_size, args.world_size\nlocal = int(b / n)", "total_batch_size", "divides it"),
        (BATCH, "for batch in data:\n    n = batch.batch_size // dist.get_world_size()", "batch_size", ""),
        (BATCH + AND % "heads", "n = args.heads / dist.get_world_size() * args.batch_size", "batch_size", ""),
        (BATCH, "print(args.batch_size / dist.get_world_size())", "batch_size", ""),
        (BATCH, "steps = len(data) // (args.batch_size * dist.get_world_size())", "batch_size", ""),
        (BATCH + AND % "accum", "n = args.batch_size // world_size\nn //= args.accum", "global_batch_size", "divides"),
        (HELP % "total batch size of all GPUs", "x = 1", None, ""),
        (HELP % "total batch size of all GPUs", LOADED, "batch_size", "hands it to DataLoader"),
        (HELP % 'images " "per GPU, the total is larger', "x = 1", "batch_size", ""),
        ('p.add_argument("--batch", type=int, help="total batch size")' + AND % "batch-gpu", "x = 1", None, ""),
        (BATCH + AND % "launcher", OF_LAUNCHER, "total_batch_size", "divides it by the world size"),
        (BATCH, "args.batch_size = None", "batch_size", ""),
        (BATCH, "args.batch_size = exact_div(args.total, args.parts)", None, ""),
        (BATCH, "args.batch_size = fit(args)", "batch_size", ""),
        (BATCH, "if args.debug:\n    args.batch_size = 2", "batch_size", ""),
        ('p.add_argument("--global-batch-size", type=int)', "x = 1", "total_batch_size", "its name"),
        (AND[1:] % "accum", "loss = loss / args.accum / dist.get_world_size()", "accum", ""),
    ],
)
def test_whose_samples_a_batch_size_counts(
    tmp_path: Path, declaration: str, body: str, meaning: str | None, because: str
) -> None:
    found = read(tmp_path, script(declaration, body)).options[0]
    assert found.meaning == meaning
    assert because in found.because if because else not found.because


ACCUM = 'p.add_argument("--accum", type=int, default=1)'
BY = ":8 divides it by the %s"
WHOSE = "`--batch-option=--batch-size:%s`"
OF_ALL = f"{WHOSE % 'rank'} or {WHOSE % 'total'}"
BY_HELP = "`--batch-size` counts the samples of several ranks by its help alone (train.py:5)"
TWICE = f"{LOADED}\nshare = math.ceil(args.batch_size / dist.get_world_size())"
NOT_SAME = "train.py:9 divides it by the world size, and train.py:8 hands it to DataLoader undivided"


@pytest.mark.parametrize(
    ("declaration", "body", "clause", "fix"),
    [
        (BATCH, "n = int(args.batch_size / torch.cuda.device_count())", BY % "processes per node", WHOSE % "node"),
        (HELP % "images of each node", "x = 1", BY_HELP, OF_ALL.replace(" or ", f" or {WHOSE % 'node'} or ")),
        (BATCH + AND % "accum", "n = args.batch_size // args.accum", "by the accumulation", WHOSE % "step"),
        (BATCH, TWICE, NOT_SAME, OF_ALL),
        (ACCUM, "steps = args.accum // dist.get_world_size()", BY % "world size", "pass `--accum` yourself after `--`"),
    ],
)
def test_what_an_option_counts_otherwise_is_said_and_not_passed(
    tmp_path: Path, declaration: str, body: str, clause: str, fix: str
) -> None:
    report = read(tmp_path, script(declaration, body))
    meaning = "accum" if declaration == ACCUM else "batch_size"
    assert not any(each.meaning in ("batch_size", meaning) for each in report.options)
    assert [(each.meaning, each.clause.endswith(clause), each.fix) for each in report.instead] == [(meaning, True, fix)]


def test_a_value_is_followed_through_parameters_methods_and_files(tmp_path: Path) -> None:
    engine = """
        class Trainer:
            def __init__(self, batch):
                self.batch = batch
            def run(self):
                self.start(world=dist.get_world_size(), batch=self.batch)
            def start(self, batch, world):
                self.local = batch // world
    """
    text = "from engine import Trainer\n" + script(BATCH, "Trainer(args.batch_size).run()")
    found = option(read(tmp_path, text, engine=engine), "--batch-size")
    assert (found.meaning, found.because) == ("total_batch_size", "engine.py:8 divides it by the world size")


SPAWN_OPTIONS = """
    p.add_argument("--batch-size", type=int, help="the total batch size of all GPUs on the node")
    p.add_argument("--gpu", type=int, default=None)
"""


def test_an_attribute_keeps_its_value_where_a_function_is_given_it_by_that_name(tmp_path: Path) -> None:
    """`main_worker(args.gpu, args)` with `args.gpu = gpu` in it, as in pytorch/examples/imagenet."""
    text = script(SPAWN_OPTIONS, "    work(args.gpu, args)\n") + dedent("""
        def work(gpu, args):
            args.gpu = gpu
            if args.gpu is not None:
                args.batch_size = int(args.batch_size / torch.cuda.device_count())
    """)
    assert option(read(tmp_path, text), "--batch-size").meaning == "batch_size"
    assert option(read(tmp_path, text, "--gpu", "0"), "--batch-size").meaning is None


@pytest.mark.parametrize(
    ("condition", "exists", "demanded"),
    [("__name__ == '__main__'", True, True), ("int(torch.__version__.split('.')[0]) < 2", True, False)],
)
def test_an_option_is_demanded_under_no_condition(tmp_path: Path, condition: str, exists: bool, demanded: bool) -> None:
    text = f"""
        import argparse, torch
        p = argparse.ArgumentParser()
        if {condition}:
            p.add_argument("--local_rank", type=int, required=True)
    """
    report = read(tmp_path, text)
    assert (bool(report.options), report.demands_local_rank is not None) == (exists, demanded)


RATE = 'p.add_argument("--lr", type=float, default=0.0005)'


@pytest.mark.parametrize(
    ("body", "constant", "powers"),
    [
        ("opt = SGD(m, lr=args.lr * dist.get_world_size())", 1.0, {WORLD: 1.0}),
        ("args.lr = args.lr * math.sqrt(args.world_size)", 1.0, {UNREAD: 1.0}),
        ("args.lr = args.lr * args.world_size ** 0.5", 1.0, {UNREAD: 1.0}),
        ("rate = args.lr * args.batch_size * dist.get_world_size() / 256.", 1 / 256, {WORLD: 1.0, "batch_size": 1.0}),
        ("scaled = args.lr * args.world_size\nargs.lr = scaled", 1.0, {WORLD: 1.0}),
        ("args.lr = args.lr * torch.cuda.device_count()", 1.0, {LOCAL_WORLD: 1.0}),
        ("args.lr *= args.batch_size * len(args.gpu_ids) / 256", 1 / 256, {UNREAD: 1.0, "batch_size": 1.0}),
        ('ngpu = len(args.gpus.strip(",").split(","))\nrate = args.lr * ngpu', 1.0, {LOCAL_WORLD: 1.0}),
        ("r = args.lr * cfg.BATCH * args.world_size / 8 * cfg.DECAY", 1 / 8, {"?BATCH": 1.0, WORLD: 1.0}),
        ("rate = args.lr * 0.1 ** (epoch // 30)", None, {}),
        ("print('base', args.lr * args.world_size)", None, {}),
        ("base = args.lr * 256 / (args.batch_size * args.world_size)", None, {}),
        ("if args.batch_size < 1:\n    args.lr = args.lr * args.world_size", None, {}),
    ],
)
def test_a_learning_rate_that_the_script_scales(
    tmp_path: Path, body: str, constant: float | None, powers: dict[str, float]
) -> None:
    rule = option(read(tmp_path, script(RATE + "\n" + BATCH, body)), "--lr").rule
    assert (rule is None) is (constant is None)
    if rule is not None:
        assert rule.constant == pytest.approx(constant)
        assert dict(rule.powers) == powers


def test_of_two_learning_rates_the_final_one_is_meant(tmp_path: Path) -> None:
    declarations = 'p.add_argument("--lr", type=float)\np.add_argument("--blr", type=float, default=1e-3)\n' + BATCH
    body = "if args.lr is None:\n    args.lr = args.blr * args.batch_size * dist.get_world_size() / 256"
    report = read(tmp_path, script(declarations, body))
    assert (option(report, "--lr").meaning, option(report, "--lr").rule) == ("lr", None)
    assert option(report, "--blr").meaning is None
    assert report.ambiguous == ()


@pytest.mark.parametrize(
    ("flags", "ambiguous"),
    [(("--matrix-lr", "--init-lr-frac"), ()), (("--peak-lr", "--max-lr"), (("lr", ("--peak-lr", "--max-lr")),))],
)
def test_what_several_options_could_mean_is_said(tmp_path: Path, flags: tuple[str, str], ambiguous: object) -> None:
    declarations = "\n".join(f'p.add_argument("{flag}", type=float)' for flag in flags)
    report = read(tmp_path, script(declarations, "x = 1"))
    assert report.ambiguous == ambiguous and [each.meaning for each in report.options] == [None, None]


@pytest.mark.parametrize(("declaration", "meaning"), sections(Path(__file__).with_name("names_and_units.txt")))
def test_names_and_units(tmp_path: Path, declaration: str, meaning: str) -> None:
    """In ``names_and_units.txt`` the meaning of an option stands below it, or None."""
    report = read(tmp_path, script(f"p.add_argument({declaration})", "x = 1"))
    assert f"{report.options[0].meaning}\n" == meaning


def test_an_accumulation_that_follows_from_other_options_is_left_to_them(tmp_path: Path) -> None:
    """GaLore takes the batch, the accumulation and the total, and computes what is left out."""
    options = f'{BATCH}\np.add_argument("--accum", type=int)\np.add_argument("--total-batch-size", type=int)'
    body = """
        if args.total_batch_size is None:
            args.accum = args.accum or 1
            args.total_batch_size = args.batch_size * args.accum
        if args.accum is None:
            args.accum = args.total_batch_size // (args.batch_size * args.world_size)
    """
    report = read(tmp_path, script(options, dedent(body)))
    assert [each.meaning for each in report.options] == ["batch_size", None, "global_batch_size"]


@pytest.mark.parametrize(
    ("declarations", "body", "clause"),
    [
        (BATCH, "\nargs.batch_size = 16", "train.py:9 sets `batch_size` to 16 itself"),
        (BATCH, "DataLoader(d, batch_size=24)", ""),
    ],
)
def test_what_stands_in_the_place_of_an_option(tmp_path: Path, declarations: str, body: str, clause: str) -> None:
    found = clauses(read(tmp_path, script(declarations, body))).get("batch_size", "")
    assert found.startswith(clause) and bool(found) is bool(clause)


COMMAND = """
    import click
    import torch.distributed as dist
    def train(*, batch_size, lr):
        TrainingArguments(per_device_train_batch_size=batch_size{by}, learning_rate=lr)
    @click.command()
    @click.option("--batch-size", type=int)
    @click.option("--lr", type=float)
    def main({parameters}):
        train({arguments})
    main()
"""


@pytest.mark.parametrize(
    ("parameters", "arguments", "by", "meaning"),
    [
        ("**kwargs", "**kwargs", "", "batch_size"),
        ("batch_size, lr", "batch_size=batch_size, lr=lr", " // dist.get_world_size()", "total_batch_size"),
    ],
)
def test_a_number_is_followed_through_a_command(
    tmp_path: Path, parameters: str, arguments: str, by: str, meaning: str
) -> None:
    report = read(tmp_path, COMMAND.format(parameters=parameters, arguments=arguments, by=by))
    assert [(each.meaning, each.doubt) for each in report.options] == [(meaning, ""), ("lr", "")]


def test_circles_and_depth_end(tmp_path: Path) -> None:
    chain = "\n".join(f"def f{n}(x):\n    return f{n + 1}(x * f{n + 1}(x)) / f{n + 2}(x)" for n in range(24))
    text = script(BATCH, "args.batch_size = args.batch_size / f0(args.batch_size)\nx = y\ny = x\nx = x * y")
    assert option(read(tmp_path, chain + "\n" + text), "--batch-size").meaning == "batch_size"


@pytest.mark.parametrize(
    ("switch", "meaning"),
    [
        ('p.add_argument("--local_rank", type=int, default=-1)', "total_batch_size"),
        ('p.add_argument("--ddp", dest="local_rank", type=int, default=-1)', "batch_size"),
    ],
)
def test_a_number_beside_a_process_group_that_waits_for_a_local_rank_is_the_one_that_it_will_be(
    tmp_path: Path, switch: str, meaning: str
) -> None:
    body = "if args.local_rank != -1:\n    dist.init_process_group()\n"
    report = read(tmp_path, script(f"{BATCH}\n{switch}", f"{body}    args.batch_size //= dist.get_world_size()"))
    assert option(report, "--batch-size").meaning == meaning
    assert report.switched_off is not None


MADE = BATCH + AND % "lr" + AND % "per_gpu" + AND % "base_lr"
MAKES = """
args.per_gpu = args.batch_size // dist.get_world_size()
args.lr = args.base_lr * args.per_gpu * dist.get_world_size() / 256
loader = DataLoader(data, batch_size=args.per_gpu)
optimizer = SGD(model, lr=args.lr)
"""


def test_an_option_that_the_script_computes_from_others_takes_no_number(tmp_path: Path) -> None:
    declared = MADE.replace('lr", type=int', 'lr", type=float').replace("per_gpu", "batch_size_per_gpu")
    report = read(tmp_path, script(declared, MAKES.replace("per_gpu", "batch_size_per_gpu")))
    meanings = {item.flags[0]: item.meaning for item in report.options if item.meaning}
    assert meanings == {"--batch-size": "total_batch_size", "--base_lr": "lr"}
    rule = option(report, "--base_lr").rule
    assert rule is not None and rule.powers == (("batch_size", 1.0),)
    assert rule.constant == pytest.approx(1 / 256)
    kept = read(tmp_path, script(declared, "if args.lr is None:\n    args.lr = args.base_lr * 2"))
    assert "--lr" in {item.flags[0] for item in kept.options if item.meaning}


@pytest.mark.parametrize(
    ("default", "powers"),
    [
        ("", (("batch_size", 1.0), (WORLD, 1.0))),
        (", default=0", (("batch_size", 1.0), (WORLD, 1.0))),
        (", default=-1", (("batch_size", 1.0), (WORLD, 1.0))),
        (", default=64", ((WORLD, 1.0),)),
    ],
)
def test_a_condition_on_an_option_that_the_plan_may_pass_can_hold(
    tmp_path: Path, default: str, powers: tuple[tuple[str, float], ...]
) -> None:
    test = "args.batch_size" if "64" not in default else "not args.batch_size"
    body = (
        f"cfg.SIZE = 128\nif {test}:\n    cfg.SIZE = args.batch_size\n"
        "rate = args.lr * cfg.SIZE * dist.get_world_size() / 512"
    )
    declared = f'p.add_argument("--batch-size", type=int{default})\np.add_argument("--lr", type=float, default=0.1)'
    rule = option(read(tmp_path, script(declared, body)), "--lr").rule
    assert rule is not None
    assert rule.powers == powers


def test_a_batch_size_that_only_a_rate_is_scaled_from_is_none(tmp_path: Path) -> None:
    other = 'p.add_argument("--bs_per_gpu", type=int, default=32, help="images per GPU for auto-rescale learning rate")'
    report = read(tmp_path, script(f"{BATCH}\n{other}", "local = args.batch_size // dist.get_world_size()"))
    assert [item.meaning for item in report.options] == ["total_batch_size", None]


SHARED = "args.batch_size = args.batch_size // dist.get_world_size()\n"
MAKE = "def make(args):\n    return SGD(m, lr=args.lr * args.batch_size * dist.get_world_size() / 256)\n"


def test_each_option_that_multiplies_a_scaled_rate_counts_but_not_those_of_its_schedule(tmp_path: Path) -> None:
    declared = f'{BATCH}\n{RATE}\np.add_argument("--k", type=float, default=3.0)'
    rule = option(read(tmp_path, script(declared, "SGD(m, lr=args.lr * args.batch_size / 256 * args.k)")), "--lr").rule
    assert rule is not None and dict(rule.powers) == {"batch_size": 1.0, "k": 1.0}
    rule = option(read(tmp_path, script(declared, "lr = args.lr * args.batch_size * step / args.k")), "--lr").rule
    assert rule is not None and dict(rule.powers) == {"batch_size": 1.0}, "only a part of it is known"


@pytest.mark.parametrize("body", [f"{MAKE}{SHARED}make(args)\n", f"{MAKE}if x:\n    {SHARED}make(args)\n"])
def test_a_rate_of_a_batch_that_the_script_divides_is_not_computed(tmp_path: Path, body: str) -> None:
    """SlotCon divides its batch by the world size first, and multiplies it again where it scales the rate."""
    report = read(tmp_path, script(f"{BATCH}\n{RATE}", body))
    assert option(report, "--batch-size").meaning == "total_batch_size"
    rule = option(report, "--lr").rule
    assert rule is not None and UNREAD in dict(rule.powers)


def test_the_batch_that_deepspeed_gets_is_that_of_an_optimizer_step(tmp_path: Path) -> None:
    body = 'c = {"train_batch_size": args.batch_size%s}'
    text = "import deepspeed\n" + script(BATCH, body % "")
    found = option(read(tmp_path, text), "--batch-size")
    assert found.meaning == "global_batch_size" and "hands it to DeepSpeed" in found.because
    for other in ("import deepspeed\n" + script(BATCH, body % " * dist.get_world_size()"), script(BATCH, body % "")):
        assert option(read(tmp_path, other), "--batch-size").meaning == "batch_size"


@pytest.mark.parametrize(
    ("step", "doubted"),
    [("f(model)", True), ("super().training_step(model)", False), ("super(Mine, self).training_step(model)", False)],
)
def test_an_accumulation_is_in_doubt_where_a_trainer_has_a_step_of_its_own(
    tmp_path: Path, step: str, doubted: bool
) -> None:
    """Trainer.training_step divides the loss by the accumulation."""
    own = f"class Mine(t.Trainer):\n    def training_step(self, model):\n        return {step}\nMine().train()\n"
    head = "import transformers as t\na = t.HfArgumentParser(t.TrainingArguments).parse_args_into_dataclasses()\n"
    found = option(read(tmp_path, head + own), "--gradient_accumulation_steps")
    assert found.doubt == ("train.py may replace the `training_step` that divides the loss" if doubted else "")
    unread = option(read(tmp_path, head + own.replace("t.Trainer", "Own")), "--learning_rate")
    assert unread.doubt == "`--learning_rate` was followed to train.py:2, not to an optimizer"


@pytest.mark.parametrize(
    ("words", "doubted"), [("", False), ("--lr_scheduler_type constant", True), ("--config run.yaml", True)]
)
def test_a_warmup_is_in_doubt_where_the_schedule_may_be_constant(tmp_path: Path, words: str, doubted: bool) -> None:
    (tmp_path / "run.yaml").write_text("lr_scheduler_type: constant\n")
    text = "from trl import SFTConfig, SFTTrainer, TrlParser\nTrlParser(SFTConfig)\nSFTTrainer().train()\n"
    found = option(read(tmp_path, text, *words.split()), "--warmup_steps")
    assert bool(found.doubt) is doubted


DECLARED = {"BATCH": BATCH, "RATE": RATE, "ACCUM": ACCUM}
DECLARED["WARMUP"] = 'p.add_argument("--warmup-steps", type=int, default=0)'
UNLOADED = "`--batch-size` was followed to train.py:5, not to a DataLoader"


@pytest.mark.parametrize(("doubt", "text"), sections(Path(__file__).with_name("doubts.txt")))
def test_a_number_that_was_not_followed_to_what_trains_is_in_doubt(tmp_path: Path, doubt: str, text: str) -> None:
    """In ``doubts.txt`` the start of the doubt stands over the option's declaration and what is done with it."""
    declared, _, body = text.partition("---\n")
    name, _, more = declared.partition("\n")
    declarations = f"{DECLARED.get(name, name)}\n{more}".rstrip()
    found = next(each for each in read(tmp_path, script(declarations, body), "all.txt").options if each.meaning)
    assert found.doubt == "" if doubt == "certain" else found.doubt.startswith(doubt)


def test_arguments_that_another_file_parses_are_followed(tmp_path: Path) -> None:
    body = "import torch\nfrom given import opt\nimport given\nSGD(weights, lr=%s.lr)\n"
    given = f"import argparse\np = argparse.ArgumentParser()\n{RATE}\nopt = p.parse_args()\n"
    for name in ("opt", "given.opt"):
        assert option(read(tmp_path, body % name, given=given), "--lr").doubt == ""


def test_what_was_not_followed_still_tells_the_unit_of_an_option(tmp_path: Path) -> None:
    loaded = "DataLoader(data, batch_size=opt.batch_size // dist.get_world_size())"
    body = f"def work(opt):\n    {loaded}\nfunctools.partial(work, args)()"
    found = option(read(tmp_path, script(BATCH, body)), "--batch-size")
    assert (found.meaning, found.doubt) == ("total_batch_size", UNLOADED)


@pytest.mark.parametrize(
    ("body", "clause"),
    [
        ("loss.backward()", None),
        ("grad_accum_steps = 1", None),
        ("accum_steps = 4", "train.py:8 may decide the accumulation"),
        ("data.xyz_gradient_accum = torch.zeros(4)", None),
        ("'''\ngrad_accum_steps = 4: what it is\n'''", None),
        ("accumulate = max(round(64 / batch), 1)", "train.py:8 may decide the accumulation"),
        ("c = {'gradient_accumulation_steps': 8}", "train.py:8 may decide the accumulation"),
        ("Trainer(accumulate_grad_batches=tokens // batch)", "train.py:8 may decide the accumulation"),
        ("c = {'gradient_accumulation_steps': 'auto'}", None),
        ("import helper\nhelper.Config()", "helper.py:2 may decide the accumulation"),
        ("import helper", None),
    ],
)
def test_an_accumulation_of_the_scripts_own_is_said(tmp_path: Path, body: str, clause: str | None) -> None:
    report = read(tmp_path, script(BATCH, body), helper="class Config:\n    grad_accum_steps: int = 8\n")
    assert clauses(report).get("accum") == clause


def test_an_accumulation_in_a_file_that_is_passed_is_said(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("train:\n  gradient_accumulation_steps: 8\n")
    assert clauses(read(tmp_path, script(BATCH, "x = 1"), "run.yaml")) == {
        "accum": "run.yaml:2 may decide the accumulation"
    }


@pytest.mark.parametrize(
    ("body", "clause"),
    [
        ("loss.backward()\noptimizer.step()", None),
        ("o = torch.optim.SGD(model.parameters(), 0.1)\nfor x in y:\n    loss.backward()\n    o.step()", None),
        (
            "for x in loader:\n    loss.backward()\n    if scaler is None:\n        opt.step()\n"
            "    else:\n        scaler.step(opt)",
            None,
        ),
        ("for x in loader:\n    loss.backward()\n    for opt in optimizers:\n        opt.step()", None),
        ("for x in loader:\n    loss.backward()\n    if i % 4 == 0:\n        opt.step()", "train.py:9"),
        ("for x in loader:\n    for y in x:\n        loss.backward()\n    opt.step()", "train.py:10"),
        ("for x in loader:\n    loss.backward()\n    scheduler.step()", "train.py:9"),
        ("for x in loader:\n    self.manual_backward(loss)\n    if i % 4 == 0:\n        opt.step()", "train.py:9"),
        ("import lightning\nlightning.Trainer(devices=4)", None),
        ("import lightning\nlightning.Trainer(**options)", "no training loop was read"),
        ("import lightning\nself.automatic_optimization = False\nlightning.Trainer()", "no training loop was read"),
        ("import library\nlibrary.train()", "no training loop was read"),
    ],
)
def test_an_accumulation_of_one_is_claimed_where_each_pass_was_followed_to_a_step(
    tmp_path: Path, body: str, clause: str | None
) -> None:
    found = dict(read(tmp_path, script(BATCH, body)).doubts).get("accum")
    assert found == (f"no step was read for each pass at {clause}" if clause and ":" in clause else clause)


@pytest.mark.parametrize(
    ("body", "known"),
    [
        ("if cfg.rule == 'linear':\n    args.lr *= n / 256\nelif cfg.rule == 'sqrt':\n    args.lr *= n ** 0.5", False),
        ("args.lr = args.lr * n / 256\nif step:\n    rate = args.lr * 0.1", True),
    ],
)
def test_a_rule_that_something_else_chooses_is_not_computed(tmp_path: Path, body: str, known: bool) -> None:
    rule = option(read(tmp_path, script(f"{BATCH}\n{RATE}", f"n = args.batch_size\n{body}")), "--lr").rule
    assert rule is not None and (UNREAD not in dict(rule.powers)) is known
