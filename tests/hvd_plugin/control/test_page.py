"""The page of a job as a browser shows it: whole, by itself, on any screen, whatever ranks are called."""

import asyncio
import os
import shutil
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
from aiohttp import web

from gradsieve_hvd.control.history import HOUR, POINT_SECONDS
from gradsieve_hvd.control.job_state_machine import JobStateMachine
from gradsieve_hvd.control.messages import Incarnation, Place, Plan, Registration, Roster
from gradsieve_hvd.control.page.page import MOST_RANKS
from gradsieve_hvd.control.readonly import read_only_application
from gradsieve_hvd.control.telemetry import RankTelemetry, Telemetry

REQUIRED = "GRADSIEVE_REQUIRE_BROWSER"
EVIL = '<script>document.title = "evil"</script><img src=x onerror="document.title=1">'
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--window-size=1000,1600",
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        message = "the page is looked at with Debian's packages chromium and chromium-driver"
        if os.environ.get(REQUIRED) == "1":
            pytest.fail(f"{message} ({REQUIRED}=1 makes this a failure)")
        pytest.skip(message)
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('browser')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with webdriver.Chrome(options=options, service=webdriver.ChromeService(driver)) as found:
        found.set_page_load_timeout(60)
        yield found


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


class Shown:
    """A job whose page is served."""

    def __init__(self):
        self.clock = Clock()
        self.job = JobStateMachine(self.clock)
        self._decisions = SimpleNamespace(job=self.job)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.address = self._run(self._serve())

    async def _serve(self):
        application = read_only_application(self._decisions, ["2026-11-24T08:00:00Z"])
        self._runner = web.AppRunner(application)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0]
        return f"http://{host}:{port}/"

    def _run(self, work):
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def close(self):
        self._run(self._runner.cleanup())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def start(self, hosts):
        for host in hosts:
            self.job.register(Registration(Incarnation(host, f"uid-{host}"), 1, 1))
        places = tuple(Place(host, f"uid-{host}", 1) for host in hosts)
        self.job.set_roster(Roster(1, ("python", "secret.py"), "Gloo", places, {"TOKEN": "secret"}, None))
        self.job.start()
        self.job.running()

    def tell(self, *ranks):
        """Have each rank's own host tell what it does."""
        for rank in ranks:
            self.job.take_ranks(Incarnation(rank.host, f"uid-{rank.host}"), [replace(rank, generation=1)])

    def train(
        self, seconds, works, waits, *, plan=0, mode="Synchronous", step_from=0, density=10.0, loss=2.0
    ):
        """Take a sample every two seconds for so long."""
        hosts = [place.host for place in self.job.roster.hosts]
        for number in range(int(seconds / 2)):
            ranks = tuple(map(RankTelemetry, range(len(works)), hosts, works, waits))
            wait = sum(waits) / len(waits)
            numbers = {
                "stepSeconds": wait + sum(works) / len(works),
                "waitSeconds": wait,
                "selectSeconds": 0.004,
                "time": 0.0,
                "wireBytesPerStep": 3.2e6,
                "denseBytesPerStep": 1.024e8,
                "densityPermille": density,
                "appliedPlanGeneration": float(plan),
                "loss": loss * 0.998**number,
            }
            self.tell(*ranks)
            self.job.take(hosts[0], Telemetry(1, step_from + 10 * number, numbers, (), mode, (mode,)))
            self.clock.now += 2.0


@pytest.fixture
def shown():
    made = Shown()
    yield made
    made.close()


@pytest.fixture
def adapted(shown):
    """An hour in which one of four nodes became slow, and shares were changed for it."""
    shown.start([f"worker-{number}" for number in range(4)])
    shown.train(1600, [0.05] * 4, [0.012] * 4)
    shown.train(300, [0.05, 0.05, 0.05, 0.2], [0.16, 0.16, 0.16, 0.012], step_from=8000, loss=1.0)
    reason = "the slowest rank on worker-3 always works 2.29 times as long as the mean"
    plan = {"generation": 1, "mode": "Balanced", "reason": "SlowTail", "evidence": reason}
    shown.job.set_plan(Plan(1, plan))
    shown.train(1600, [0.061] * 4, [0.013] * 4, plan=1, mode="Balanced", step_from=9500, density=20, loss=0.9)
    return shown


def widths(browser, selector):
    return browser.execute_script(
        "return [...document.querySelectorAll(arguments[0])].map(e => e.getBoundingClientRect().width)",
        selector,
    )


def text(browser, selector):
    from selenium.webdriver.common.by import By

    return browser.find_element(By.CSS_SELECTOR, selector).text


def test_it_tells_where_the_job_is_what_a_step_is_made_of_and_why(adapted, browser, tmp_path):
    browser.get(adapted.address)
    browser.save_screenshot(str(tmp_path / "page.png"))
    figures = text(browser, "#figures")
    assert "17490" in figures.replace("\u202f", "")
    assert "96.9 %" in figures
    assert "74 ms" in figures
    plan = text(browser, "#plan")
    assert "Balanced" in plan
    assert "2 %" in plan
    assert "SlowTail: the slowest rank on worker-3 always works 2.29 times as long as the mean" in plan
    assert "Running" in text(browser, "header")
    [computing, selecting, waiting] = widths(browser, "#split .bar i")
    [whole] = widths(browser, "#split .bar")
    assert computing + selecting + waiting == pytest.approx(whole, abs=1)
    assert (selecting / whole, waiting / whole) == pytest.approx((0.004 / 0.074, 0.013 / 0.074), abs=0.005)
    assert len(widths(browser, "#ranks tr")) == 4
    # Step time, loss and density, each with the mark of the change.
    assert len(widths(browser, "#hour svg")) == len(widths(browser, "#hour .change")) == 3
    assert "secret" not in browser.page_source


def test_it_needs_nothing_from_elsewhere_and_says_nothing_to_the_console(adapted, browser):
    browser.get(adapted.address)
    asked = browser.execute_script("return performance.getEntriesByType('resource').map(e => e.name)")
    assert asked == []
    assert browser.get_log("browser") == []


def test_what_is_drawn_lies_within_its_chart(adapted, browser):
    browser.get(adapted.address)
    outside = browser.execute_script(
        """
        return [...document.querySelectorAll('svg')].flatMap(svg => {
            const {width, height} = svg.viewBox.baseVal
            return [...svg.querySelectorAll('polyline, polygon, line, text')].map(e => e.getBBox()).filter(
                b => b.x < -1 || b.y < -1 || b.x + b.width > width + 1 || b.y + b.height > height + 1)
        }).map(b => [b.x, b.y, b.width, b.height])
        """
    )
    assert outside == []


@pytest.mark.parametrize("width", [360, 1000])
def test_it_fits_a_telephone_and_a_screen(adapted, browser, width):
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        browser.get(adapted.address)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_it_is_readable_by_day_and_by_night(adapted, browser):
    grounds = []
    for scheme in ("light", "dark"):
        wanted = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", wanted)
        browser.get(adapted.address)
        colours = {
            name: browser.execute_script(
                "return getComputedStyle(document.querySelector(arguments[0]))[arguments[1]]", selector, name
            )
            for selector, name in (("body", "background-color"), ("dt", "color"), ("svg text", "fill"))
        }
        ground = colours.pop("background-color")
        grounds.append(ground)
        for colour in colours.values():
            assert contrast(colour, ground) >= 4.5, (scheme, colour, ground)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert luminance(grounds[0]) > luminance(grounds[1])


def luminance(colour):
    """Of a colour as in the Web Content Accessibility Guidelines 2.2."""
    parts = [int(part) / 255 for part in colour.removeprefix("rgb(").removesuffix(")").split(",")]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    bright, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def test_names_from_outside_are_text_and_nothing_else(shown, browser):
    shown.start(["worker-0"])
    shown.train(30, [0.1], [0.01], mode=EVIL[:60])
    shown.job.set_plan(Plan(1, {"generation": 1, "reason": EVIL, "evidence": EVIL}))
    shown.job.message = EVIL
    browser.get(shown.address)
    assert browser.title == "gradsieve job: Running"
    assert EVIL in text(browser, "#plan")
    assert EVIL in text(browser, "header")


def test_a_container_that_uses_its_limit_up_is_named(shown, browser):
    shown.start(["worker-0", "worker-1"])
    numbers = {"stepSeconds": 0.3, "waitSeconds": 0.1, "time": 0.0}
    shown.tell(RankTelemetry(0, "worker-0", 0.1, 0.2), RankTelemetry(1, "worker-1", 0.3, 0.0, None, 0.62))
    shown.job.take("worker-0", Telemetry(1, 5, numbers))
    browser.get(shown.address)
    assert "throttled 62% of the time" in text(browser, "#ranks")
    assert text(browser, "#ranks").count("throttled") == 1


def test_of_thousands_of_ranks_the_slowest_are_shown(shown, browser):
    hosts = [f"worker-{number}" for number in range(2000)]
    shown.start(hosts)
    shown.train(4, [0.1 + (number == 1234) for number in range(2000)], [0.01] * 2000)
    browser.get(shown.address)
    assert len(widths(browser, "#ranks tr")) == MOST_RANKS
    assert "worker-1234" in text(browser, "#ranks")
    assert f"{2000 - MOST_RANKS} faster ranks are not shown" in text(browser, "#ranks")
    assert len(browser.page_source) < 100_000


def test_a_job_that_has_not_trained_yet_has_a_page(shown, browser):
    shown.job.set_roster(Roster(1, ("true",), "Gloo", (Place("worker-0", "uid", 1),), {}, None))
    browser.get(shown.address)
    assert "No step has been reported yet" in text(browser, "#training")
    assert "worker-0 missing" in text(browser, "#hosts")


@pytest.mark.parametrize("value", [0.0, 1e-12, 1e18])
def test_numbers_that_cannot_be_true_are_shown_as_they_are(shown, browser, value):
    shown.start(["worker-0"])
    numbers = {
        "stepSeconds": value,
        "waitSeconds": 1e18,
        "time": 0.0,
        "loss": -value,
        "denseBytesPerStep": value,
    }
    for _ in range(3):
        shown.tell(RankTelemetry(0, "worker-0", value))
        shown.job.take("worker-0", Telemetry(1, 5, numbers))
        shown.clock.now += POINT_SECONDS
    browser.get(shown.address)
    assert browser.get_log("browser") == []
    assert len(widths(browser, "#hour svg")) == 2
    assert "NaN" not in browser.page_source


def test_the_last_hour_is_kept_and_no_more(shown):
    shown.start(["worker-0"])
    shown.train(3 * HOUR, [0.1], [0.01])
    now, points = shown.job.measured.history_until_now()
    assert now - points[0].at == pytest.approx(HOUR, abs=POINT_SECONDS)
    assert len(points) == pytest.approx(HOUR / POINT_SECONDS, abs=2)
    assert sum(point.samples for point in points) == pytest.approx(HOUR / 2, abs=6)
