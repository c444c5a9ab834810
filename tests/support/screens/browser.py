"""A headless Chromium that tests drive, and what it logged."""

import json
import shutil

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

__all__ = ["By", "MISSING", "WebDriverWait", "requested", "resize", "start"]

CHROMIUM = (
    shutil.which("chromium")
    or shutil.which("chromium-browser")
    or shutil.which("google-chrome")
)
DRIVER = shutil.which("chromedriver")
MISSING = None
if not (CHROMIUM and DRIVER):
    MISSING = (
        "needs chromium and chromedriver (apt-get install chromium chromium-driver)"
    )

# No sandbox: tests may run as root in a container. The rest keeps the browser from calling its
# maker.
SWITCHES = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)


def start(profile):
    """Return a browser with an empty profile in the folder `profile`."""
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for switch in (*SWITCHES, f"--user-data-dir={profile}"):
        options.add_argument(switch)
    options.set_capability(
        "goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"}
    )
    # A driver that is named keeps selenium from looking for one on the network.
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))


def resize(driver, width, height=900, colours="light"):
    """Set the page's size in CSS pixels, and the colour scheme that it is asked for."""
    metrics = {
        "width": width,
        "height": height,
        "deviceScaleFactor": 1,
        "mobile": False,
    }
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": colours}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def requested(driver):
    """Return the URLs asked for since the last call."""
    urls = []
    for entry in driver.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            urls.append(message["params"]["request"]["url"])
    return urls
