"""Numbers into configurations: the words that a script takes for the keys of its own."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import pytest

from ddplaunch.planning.launch import Target, Topology
from ddplaunch.planning.options import Options
from ddplaunch.planning.script_numbers.as_said import understood_as_said
from ddplaunch.planning.script_numbers.forward import Forwarded, forward
from ddplaunch.planning.script_numbers.handed_out import Plan, complete_from_script
from ddplaunch.script.read import read_script
from ddplaunch.script.script_report import ScriptReport
from ddplaunch.values.finding import UsageError
from ddplaunch.values.resolved import Resolved, Source, Unavailable
from tests.hosts.launching import run_and_read
from tests.planning.test_script_numbers import NUMBERS

FLAG = Source("flag")
FOUR, STEP, RATE = Resolved(4, FLAG), Resolved(64, FLAG), Resolved(0.004, FLAG)
ON_FOUR = replace(NUMBERS, world_size=FOUR, global_batch_size=STEP, lr=RATE)
PLAN = Plan(ON_FOUR, 4, 1, frozenset({"batch_size", "lr", "accum", "warmup_steps"}))


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(dedent(text))


def read(folder: Path, *args: str) -> ScriptReport:
    return read_script(folder / "train.py", folder, args=args)


def launched(folder: Path, *args: str) -> Forwarded:
    return forward(args, PLAN, read(folder, *args))


HYDRA = """
    import hydra
    @hydra.main(version_base=None, config_path="conf", config_name="config")
    def main(cfg):
        loader = DataLoader(data, batch_size=cfg.data.batch_size)
    main()
"""
HYDRA_FILES = {
    "train.py": HYDRA,
    "conf/config.yaml": """
        data:
          batch_size: 64  # of one process
        optimizer: {lr: 0.1, weight_decay: 0}
        test:
          batch_size: 100
    """,
}


def test_a_default_names_its_file_and_key_and_an_override_contradicts_the_plan(tmp_path: Path) -> None:
    write(tmp_path, HYDRA_FILES)
    topology = Topology(Resolved(1, FLAG), Resolved(4, FLAG), 1)
    found = complete_from_script(Options(), Target("script", "train.py"), topology, read(tmp_path))
    assert found.batch_size == Resolved(64, Source("script", "default at conf/config.yaml:3"))
    assert found.lr == Resolved(0.1, Source("script", "default at conf/config.yaml:4"))
    with pytest.raises(UsageError) as caught:
        launched(tmp_path, "optimizer.lr=0.1")
    assert caught.value.findings[0].code == "option-given-twice"
    assert "conf/config.yaml:4" in caught.value.findings[0].why


@pytest.mark.parametrize("more", ["defaults: [data: digits]", "net: {_target_: src.net.Net}"])
def test_what_hydra_composes_or_makes_is_left_to_who_names_its_keys(tmp_path: Path, more: str) -> None:
    write(tmp_path, HYDRA_FILES)
    with (tmp_path / "conf/config.yaml").open("a") as file:
        file.write(f"\n{more}\n")
    report = read(tmp_path)
    reasons = {each.number: each.reason for each in forward((), PLAN, report).missing}
    assert re.fullmatch(r"no option for it was recognized, and train\.py:\d+ may hide one", reasons["lr"])
    said = Options(batch_option=Resolved("data.batch_size", FLAG))
    named = understood_as_said(report, said, Target("script", "train.py"))
    assert isinstance(named, ScriptReport)
    assert forward(("seed=1",), PLAN, named).args == ("seed=1", "data.batch_size=8")


FROM_YAML = """
    import sys
    from omegaconf import OmegaConf as om
    def build(cfg):
        return SGD(lr=cfg.lr)
    def main(cfg):
        build(cfg.optimizer)
        DataLoader(x, batch_size=cfg.get("per_rank").batch_size)
    yaml_path, args_list = sys.argv[1], sys.argv[2:]
    cfg = om.merge(om.load(yaml_path), om.from_cli(args_list))
    main(cfg)
"""


LEFT_OVER = """
    import argparse
    from omegaconf import OmegaConf
    p = argparse.ArgumentParser()
    p.add_argument({declared})
    opt, unknown = p.parse_known_args()
    config = OmegaConf.merge(*[OmegaConf.load(each) for each in [*opt.base]], OmegaConf.from_dotlist(unknown))
"""


YACS = """
    import argparse
    from defaults import _C
    p = argparse.ArgumentParser()
    p.add_argument("--cfg")
    p.add_argument({opts}, nargs=argparse.REMAINDER)
    args = p.parse_args()
    _C.merge_from_list(args.opts)
    rate = _C.TRAIN.LR * dist.get_world_size()
    found = dict(zip(args.opts[::2], args.opts[1::2]))
"""
PAIRS = ("TRAIN.BATCH_SIZE_PER_GPU", "8", "TRAIN.LR", "0.001")
YACS_DEFAULTS = """
    from yacs.config import CfgNode as CN
    _C = CN()
    _C.TRAIN = CN()
    _C.TRAIN.LR = 0.1
    _C.TRAIN.BATCH_SIZE_PER_GPU = 32
    _C.TEST = CN()
    _C.TEST.BATCH_SIZE_PER_GPU = 32
"""


DETECTRON = """
    from detectron2.config import LazyConfig, get_cfg
    from detectron2.engine import default_argument_parser, default_setup
    args = default_argument_parser().parse_args()
    cfg = get_cfg()
    cfg.merge_from_file(args.config_file)
    cfg.merge_from_list(args.opts)
    default_setup(cfg, args)
"""


def of_yacs(options: str) -> dict[str, str]:
    return {"train.py": YACS.format(opts=options), "defaults.py": YACS_DEFAULTS}


BASE = {"a.yaml": "data:\n  batch_size: 4\n"}
ON_KEYS = {"train.py": FROM_YAML, "a.yaml": "train: {batch_size: 4}\noptim: {lr: 0.1, warmup: 10}\n"}
SOLVER = ("SOLVER.IMS_PER_BATCH", "32", "SOLVER.WARMUP_ITERS", "100", "SOLVER.BASE_LR", "0.004")


@pytest.mark.parametrize(
    ("files", "args", "final"),
    [
        (HYDRA_FILES, ("seed=1", "-m"), ("seed=1", "data.batch_size=8", "optimizer.lr=0.004", "-m")),
        (HYDRA_FILES, ("data.batch_size=8",), ("data.batch_size=8", "optimizer.lr=0.004")),
        (HYDRA_FILES, ("--config-name", "other"), ("--config-name", "other")),
        (HYDRA_FILES, ("+data=faces",), ("+data=faces",)),
        (ON_KEYS, ("a.yaml",), ("a.yaml", "train.batch_size=8", "optim.warmup=100", "optim.lr=0.004")),
        ({"train.py": LEFT_OVER.format(declared='"base"'), **BASE}, ("a.yaml",), ("a.yaml", "data.batch_size=8")),
        (
            {"train.py": LEFT_OVER.format(declared='"--base", nargs="*"'), **BASE},
            ("--base", "a.yaml"),
            ("data.batch_size=8", "--base", "a.yaml"),
        ),
        (of_yacs("'opts'"), ("--cfg", "x.yaml"), ("--cfg", "x.yaml", *PAIRS)),
        (of_yacs("'--opts'"), (), ("--opts", *PAIRS)),
        (of_yacs("'--opts'"), ("--opts", "SEED", "3"), ("--opts", *PAIRS, "SEED", "3")),
        ({"train.py": DETECTRON}, ("--config-file", "x.yaml"), ("--config-file", "x.yaml", *SOLVER)),
    ],
)
def test_where_the_keys_of_a_configuration_stand(
    tmp_path: Path, files: dict[str, str], args: tuple[str, ...], final: tuple[str, ...]
) -> None:
    write(tmp_path, files)
    assert launched(tmp_path, *args).args == final


@pytest.mark.parametrize(("factor", "doubt"), [("", ""), (" * len(gpus)", "train.py:11 may change the value")])
def test_a_key_of_yacs_is_followed_to_what_trains_with_it(tmp_path: Path, factor: str, doubt: str) -> None:
    loads = f"    DataLoader(data, batch_size=_C.TRAIN.BATCH_SIZE_PER_GPU{factor})\n"
    write(tmp_path, {"train.py": YACS.format(opts="'opts'") + loads, "defaults.py": YACS_DEFAULTS})
    assert next(each for each in read(tmp_path).options if each.meaning == "batch_size").doubt == doubt


@pytest.mark.parametrize(("scale", "rate"), [("True", "0.001"), ("False", "0.004")])
def test_a_switch_of_the_configuration_decides_whether_the_rate_is_scaled(
    tmp_path: Path, scale: str, rate: str
) -> None:
    script = YACS.format(opts="'opts'").replace("rate = _C", "if _C.TRAIN.SCALE_LR:\n        rate = _C")
    defaults = YACS_DEFAULTS + "    _C.TRAIN.SCALE_LR = True\n"
    write(tmp_path, {"train.py": script, "defaults.py": defaults, "x.yaml": f"TRAIN:\n  SCALE_LR: {scale}\n"})
    assert launched(tmp_path, "--cfg", "x.yaml").args[-2:] == ("TRAIN.LR", rate)


MM = """
    import argparse
    from mmengine.config import Config, DictAction
    from mmengine.runner import Runner
    p = argparse.ArgumentParser()
    p.add_argument("config")
    p.add_argument("--cfg-options", nargs="+", action=DictAction)
    args = p.parse_args()
    cfg = Config.fromfile(args.config)
    cfg.merge_from_dict(args.cfg_options)
"""


def test_mmengine_takes_its_documented_keys_behind_their_option(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": MM, "net.py": "train_dataloader = dict(batch_size=4)\n"})
    ours = ("train_dataloader.batch_size=8", "optim_wrapper.optimizer.lr=0.004")
    final = launched(tmp_path, "net.py").args
    assert final[:2] == ("net.py", "--cfg-options")
    assert sorted(final[2:]) == sorted((*ours, "optim_wrapper.accumulative_counts=2"))
    beside = launched(tmp_path, "net.py", "--cfg-options", "a=1").args
    assert beside[1] == "--cfg-options" and beside[-1] == "a=1"


@pytest.mark.parametrize(("library", "known"), [("mmengine.runner", True), ("mmengine.config", False), ("mmcv", False)])
def test_without_a_file_only_the_library_itself_has_its_documented_keys(
    tmp_path: Path, library: str, known: bool
) -> None:
    write(
        tmp_path,
        {"train.py": MM.replace("mmengine.runner", library).replace("Runner", "Runner" if known else "Config")},
    )
    assert bool([each for each in read(tmp_path).options if each.meaning == "lr"]) is known


CONFIGURATOR = """
    import sys
    from ast import literal_eval
    for arg in sys.argv[1:]:
        if "=" not in arg:
            exec(open(arg).read())
        else:
            key, value = arg[2:].split("=")
            assert type(literal_eval(value)) is type(globals()[key])
            globals()[key] = literal_eval(value)
"""
GLOBALS = """
    import json, os
    batch_size = 12
    gradient_accumulation_steps = 5 * 8
    learning_rate = 6e-4
    exec(open("configurator.py").read())
    world_size = int(os.environ.get("WORLD_SIZE", "4"))
    gradient_accumulation_steps //= world_size
    print(json.dumps([batch_size, gradient_accumulation_steps, learning_rate]))
"""


def ran(folder: Path, args: tuple[str, ...]) -> object:
    """Return what the script itself prints for the arguments."""
    return json.loads(run_and_read([sys.executable, "train.py", *args], folder, check=True).stdout)


def test_module_level_names_are_overridden_behind_a_file_of_them(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": GLOBALS, "configurator.py": CONFIGURATOR, "small.py": "learning_rate = 0.5\n"})
    found = launched(tmp_path, "small.py")
    assert found.args[0] == "small.py"
    assert ran(tmp_path, found.args) == [8, 10, 0.004]
    said = next(item for item in found.missing if item.number == "accum")
    assert said.reason == "train.py:8 divides it by the world size"
    assert said.fix == "pass `--gradient_accumulation_steps` yourself after `--`"
    rates = [each for args in ((), ("small.py",)) for each in read(tmp_path, *args).options if each.meaning == "lr"]
    assert [rate.default for rate in rates] == ["0.0006", None]


HF = """
    from transformers import HfArgumentParser, TrainingArguments
    import sys
    parser = HfArgumentParser((TrainingArguments,))
    if len(sys.argv) == 2 and sys.argv[1].endswith(".json"):
        args, = parser.parse_json_file(sys.argv[1])
    else:
        args, = parser.parse_args_into_dataclasses()
"""


def test_a_json_file_alone_is_all_that_hugging_faces_parser_reads(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": HF, "args.json": '{"per_device_train_batch_size": 8,\n "learning_rate": 1e-5}\n'})
    found = launched(tmp_path, "args.json")
    assert (found.args, found.passed) == (("args.json",), ())
    assert {each.reason for each in found.missing} == {"only a file is read (train.py:6)"}
    assert {each.fix for each in found.missing} >= {"read `ddplaunch.current().batch_size` in the script"}
    assert launched(tmp_path).args[:2] == ("--per_device_train_batch_size", "8")


def test_a_placeholder_beside_a_file_that_is_read_alone_is_in_doubt(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": HF.replace("== 2", "> 1"), "args.json": "{}"})
    found = launched(tmp_path, "args.json", "--per_device_train_batch_size={batch_size}")
    assert dict(found.doubts)["batch_size"] == "only a file is read (train.py:6)"


TWO_PARSERS = """
    import argparse
    from transformers import HfArgumentParser, TrainingArguments
    p = argparse.ArgumentParser()
    p.add_argument("config")
    p.add_argument("--cfg-options", nargs="+")
    args, rest = p.parse_known_args()
    print(args.config, *rest)
    if 0:
        HfArgumentParser((TrainingArguments,)).parse_args_into_dataclasses(rest)
"""


def test_numbers_in_front_of_a_positional_of_an_earlier_parser_are_one_word_each(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": TWO_PARSERS})
    found = launched(tmp_path, "a.py", "--cfg-options", "x=1").args
    program = dedent(TWO_PARSERS).replace("from transformers", "#")
    done = run_and_read([sys.executable, "-c", program, *found], tmp_path, check=True)
    assert done.stdout.split()[:2] == ["a.py", "--per_device_train_batch_size=8"]


def test_numbers_stand_behind_a_file_that_hugging_faces_parsers_want_first(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": HF.replace("json", "yaml"), "a.yaml": "seed: 1\n"})
    assert launched(tmp_path, "a.yaml", "--bf16=True").args[:3] == (
        "a.yaml",
        "--bf16=True",
        "--per_device_train_batch_size=8",
    )
    options = Options(batch_option=Resolved("--per_device_train_batch_size", FLAG))
    report = understood_as_said(Unavailable("unread"), options, Target("script", "train.py", ("a.yaml", "--bf16=True")))
    assert forward(("a.yaml", "--bf16=True"), PLAN, report).args[2:] == ("--per_device_train_batch_size=8",)


@pytest.mark.parametrize(
    ("words", "reads"),
    [
        ("", True),
        ("None", True),
        ("sys.argv[1:]", True),
        ("rest", True),
        ("given", True),
        ("args=['--lr', '1'] + sys.argv[1:]", True),
        ("[*sys.argv[1:], '--lr', '1']", True),
        ("WORDS", False),
        ("args=['--batch-size', str(size)]", False),
        ("[]", False),
    ],
)
def test_options_of_a_parser_that_reads_a_list_of_its_own_are_not_passed(
    tmp_path: Path, words: str, reads: bool
) -> None:
    script = f"""
        import argparse, sys
        WORDS = ["--batch-size", "16"]
        def main(given=None):
            p = argparse.ArgumentParser()
            p.add_argument("--batch-size", type=int, default=64)
            rest = argparse.ArgumentParser().parse_known_args()[1]
            return p.parse_args({words})
        main()
    """
    write(
        tmp_path,
        {
            "train.py": script.replace(
                "            rest =", "            rest =" if words == "rest" else "            #"
            )
        },
    )
    found = launched(tmp_path)
    assert (found.args == ("--batch-size", "8")) is reads
    size = [each.reason for each in found.missing if each.number == "batch_size"]
    assert size == ([] if reads else ["`parse_args` reads a list of its own (train.py:8)"])


@pytest.mark.parametrize(
    ("parser", "defaults", "size"),
    [
        ("argparse", "p.set_defaults(seed=1, **yaml.safe_load(open(known.c)))", None),
        ("argparse", "p.set_defaults(seed=1)", 64),
        ("argparse", "p.set_defaults(**yaml.safe_load(open(known.c)))  # a.yaml has other keys", 64),
        ("yamlargparse", "", None),
    ],
)
def test_options_that_a_file_gives_defaults_have_none_that_is_known(
    tmp_path: Path, parser: str, defaults: str, size: int | None
) -> None:
    script = f"""
        import {parser}, yaml
        p = {parser}.ArgumentParser()
        p.add_argument("-c")
        p.add_argument("--batch-size", type=int, default=64)
        known, rest = p.parse_known_args()
        {defaults}
        args = p.parse_args(rest)
    """
    write(
        tmp_path, {"train.py": script, "a.yaml": f"seed: 1\n{'' if 'other keys' in defaults else 'batch_size: 16'}\n"}
    )
    topology = Topology(Resolved(1, FLAG), Resolved(4, FLAG), 1)
    sizes = []
    for args in ((), ("-c", "a.yaml")):
        words = ("--batch-size", "8")  # jsonargparse's file would overwrite what stands before it
        assert launched(tmp_path, *args).args == ((*words, *args) if "**" not in defaults and size else (*args, *words))
        options = complete_from_script(Options(), Target("script", "train.py", args), topology, read(tmp_path, *args))
        sizes.append(options.batch_size and options.batch_size.value)
    assert sizes == [64, size]


@pytest.mark.parametrize("text", ["a: [1\n", "\x00", "- 1\n- 2\n", "", "other: ${lr}\n", "other: *x\n"])
def test_a_file_that_cannot_be_read_or_has_no_keys_is_left_alone(tmp_path: Path, text: str) -> None:
    write(tmp_path, {"train.py": FROM_YAML})
    (tmp_path / "a.yaml").write_text(text)
    found = launched(tmp_path, "a.yaml")
    assert found.args == ("a.yaml",)
    for without in (found, launched(tmp_path)):
        fixes = {each.number: each.fix for each in without.missing}
        assert fixes["lr"].startswith("put `{lr}` after `--` where an option or key takes it; ")
