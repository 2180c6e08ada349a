"""What a page logs and asks the network for, as the browser reports it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class Watch:
    """What a page has said and asked for since it was opened."""

    def __init__(self, driver: Any, page: Path) -> None:
        self._driver = driver
        self._page = page
        for kind in ("browser", "performance"):
            driver.get_log(kind)  # of pages before
        driver.get(page.as_uri())

    def said(self) -> list[str]:
        """Errors and warnings on the console."""
        return [
            each["message"]
            for each in self._driver.get_log("browser")
            if each["level"] in ("SEVERE", "WARNING")
        ]

    def asked(self) -> list[str]:
        """Addresses beside the page's own file and what it has within itself."""
        messages = [
            json.loads(each["message"])["message"] for each in self._driver.get_log("performance")
        ]
        addresses = [
            each["params"]["request"]["url"]
            for each in messages
            if each["method"] == "Network.requestWillBeSent"
        ]
        own = self._page.as_uri()
        return [
            each
            for each in addresses
            if not each.startswith(("data:", "blob:")) and each.partition("#")[0] != own
        ]
