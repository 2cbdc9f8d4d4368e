"""Lines of each Python file, and the change against the main branch: ``make sizes``."""

import subprocess
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]  # an editable install shows links
FOLDERS = ("common", "router", "worker", "cachestore", "client", "deploy", "bench", "tests")


def git(*arguments: str) -> str:
    """Run git in this repository; empty where it fails."""
    done = subprocess.run(  # noqa: S603 fixed arguments
        ["git", *arguments],  # noqa: S607
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout


def main() -> None:
    """Print the table, longest first, and a sum a folder."""
    base = git("merge-base", "HEAD", "origin/main").strip() or git("rev-parse", "HEAD").strip()
    sums: Counter[str] = Counter()
    rows: list[tuple[int, int, str]] = []
    for name in git("ls-files", *[f"{folder}/*.py" for folder in FOLDERS]).splitlines():
        lines = len((ROOT / name).read_text().splitlines())
        before = len(git("show", f"{base}:{name}").splitlines())
        rows.append((lines, lines - before, name))
        sums[name.split("/")[0]] += lines
    for lines, change, name in sorted(rows, reverse=True):
        print(f"{lines:6} {change:+6} {name}")
    for folder, lines in sums.most_common():
        print(f"{lines:6}        {folder}/")


if __name__ == "__main__":
    main()
