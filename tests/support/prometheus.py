"""A real Prometheus for tests: a process on loopback that scrapes nodes each half second."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from examples.demo.fabric import free_port
from tests.support.waiting import PATIENCE_S, wait_until

PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")
MISSING = "Prometheus is not installed: apt install prometheus"
_SCRAPE = "500ms"


class Prometheus:
    """One server. A context; its data goes with its folder.

    Args:
        jobs: URLs of nodes by the name of their job.
        rules: file of rules, evaluated at each scrape.
    """

    def __init__(self, folder: Path, jobs: Mapping[str, list[str]], rules: Path) -> None:
        assert PROMETHEUS is not None
        self._folder = folder
        self._url = f"http://127.0.0.1:{free_port()}"
        config = {
            "global": {"scrape_interval": _SCRAPE, "scrape_timeout": _SCRAPE, "evaluation_interval": _SCRAPE},
            "rule_files": [str(rules)],
            "scrape_configs": [
                {"job_name": job, "static_configs": [{"targets": [urllib.parse.urlsplit(url).netloc for url in urls]}]}
                for job, urls in jobs.items()
            ],
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))

    def __enter__(self) -> Prometheus:
        command = [
            str(PROMETHEUS),
            f"--config.file={self._folder}/prometheus.yml",
            f"--storage.tsdb.path={self._folder}/data",
            f"--web.listen-address={urllib.parse.urlsplit(self._url).netloc}",
            "--log.level=warn",
        ]
        with (self._folder / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        wait_until(self._is_ready)
        return self

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, (self._folder / "prometheus.log").read_text()
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=PATIENCE_S):
                return True
        except OSError:
            return False

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(PATIENCE_S)

    def ask(self, path: str, **query: str) -> Any:
        """The data of an answer of the API.

        Raises:
            urllib.error.HTTPError: Prometheus refuses it; 400 is an expression that does not parse.
        """
        url = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series that the expression has now, each with its labels (``metric``) and ``value``."""
        found: list[dict[str, Any]] = self.ask("query", query=expression)["result"]
        return found

    def alerts(self) -> set[str]:
        """Names of the alerts whose condition holds, for long enough or not yet."""
        return {each["labels"]["alertname"] for each in self.ask("alerts")["alerts"]}
