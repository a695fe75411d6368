"""The page of a real run, looked at in a real browser: nothing wider than a phone, logs searched."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import skip

pytestmark = pytest.mark.slow
TRAIN = """
import time
import torch
import torch.distributed as dist
import ddplaunch

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1, 61):
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.05)
    print(f"step {step} on rank {dist.get_rank()}, loss {1 / step:.3f}", flush=True)
ddplaunch.log_metrics({"val_loss": 0.25})
dist.barrier()
if dist.get_rank() == 1:
    raise ValueError("no luck on " + "a-very-long-word" * 12)
dist.barrier()
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    (folder / "train.py").write_text(TRAIN)
    launcher = [sys.executable, "-m", "ddplaunch"]
    options = ["--phases", "--run-id", "seen"]
    run = subprocess.run([*launcher, "run", "2", *options, "--", "train.py"], cwd=folder, check=False, timeout=300)
    assert run.returncode == 1
    subprocess.run([*launcher, "report", "seen", "--output", "seen.html"], cwd=folder, check=True, timeout=120)
    return folder / "seen.html"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        skip("needs chromium and its driver: the page is looked at in a real browser")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    for word in ("headless=new", "no-sandbox", "disable-gpu", "no-first-run", "disable-background-networking"):
        options.add_argument(f"--{word}")
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('chromium')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    driver.set_script_timeout(300)
    yield driver
    driver.quit()


def scheme(browser: Any, name: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": name}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def test_it_tells_the_run(browser: Any, page: Path) -> None:
    from selenium.webdriver.support.ui import Select

    metrics = {"width": 375, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.get(page.as_uri())
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 375
    text = browser.find_element("tag name", "body").text
    assert "ValueError: no luck on" in browser.find_element("id", "diagnosis").text
    assert browser.find_element("id", "state").text == "failed"
    assert "val_loss" in text and "0.25" in text
    for rows in ("#timeline .row", "#phases .row"):
        assert len(browser.find_elements("css selector", rows)) == 2
    assert "raise ValueError" in browser.find_element("css selector", "#source .failed-line").text
    bars = [each.text for each in browser.find_elements("css selector", "#parts .bar")]
    assert bars[1:3] == ["start of the ranks", "training"]
    assert browser.find_element("css selector", "#loss polyline").size["height"] > 0
    browser.find_element("id", "search").send_keys("step 60")
    assert browser.find_element("id", "count").text == "2 lines"
    Select(browser.find_element("id", "rank")).select_by_value("1")
    assert browser.find_element("id", "count").text == "1 line"
    (seen,) = (each.text for each in browser.find_elements("css selector", "#log > div") if each.is_displayed())
    assert "step 60 on rank 1" in seen
    permissions = {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    browser.execute_cdp_cmd("Browser.grantPermissions", permissions)
    typed = next(each for each in browser.find_elements("tag name", "pre") if each.text.startswith("ddplaunch run"))
    typed.find_element("css selector", "button.copy").click()
    read = "navigator.clipboard.readText().then(arguments[0], error => arguments[0](String(error)))"
    assert browser.execute_async_script(read) == "ddplaunch run 2 --phases --run-id seen -- train.py"
    assert [each for each in browser.get_log("browser") if each["level"] == "SEVERE"] == []
