#!/usr/bin/env python3
"""What the work of a record would cost at list prices: costs.py RECORD.json [PRICES.toml] [--group G] [--rows ROW;ROW]

Computed from the requests that were counted, by kind, and from the bytes that left the service; a cost is that of doing
the work a thousand times. Deliberately absent: what is stored for a month, which depends on what else is there. The page
of figures has such a table where its template says `{{costs RECORD ...}}`.
"""

import argparse
import sys
import tomllib
from pathlib import Path

from benchkit import contest, host, record

PRICES = host.BENCH / "prices.toml"
TIMES = 1000
# Kinds of requests that are charged as others.
SAME = {"POST": "PUT", "COPY": "PUT", "HEAD": "GET"}
# What ends the name of a quantity that is a number of requests of one kind.
KIND = " requests"


def load_prices(path=PRICES) -> list:
    """The services of a list of prices."""
    try:
        return tomllib.loads(Path(path).read_text())["service"]
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"{path}: not a list of prices: {error!r}")


def count_requests(whole, group, row, tool) -> dict:
    """Medians of the requests of each kind; empty if the tool did not do this."""
    found = {}
    for each in whole["rows"]:
        if (each["group"], each["name"]) == (group, row) and each["quantity"].endswith(KIND):
            count = contest.median(each, tool)
            if count is not None:
                kind = each["quantity"].removesuffix(KIND)
                found[SAME.get(kind, kind)] = found.get(SAME.get(kind, kind), 0) + count
    return found


def bytes_out(whole, group, row, tool) -> float:
    """Bytes that left the service."""
    for each in whole["rows"]:
        if (each["group"], each["name"], each["quantity"]) == (group, row, "received"):
            return contest.median(each, tool) or 0
    return 0


def cost(service: dict, requests: dict, out: float) -> float:
    """Dollars for so many requests and bytes."""
    unknown = set(requests) - set(service["requests"])
    if unknown:
        sys.exit(f"{service['name']} has no price for {', '.join(sorted(unknown))} requests")
    return sum(count * service["requests"][kind] for kind, count in requests.items()) / 1e6 + out * service["out"] / 1e9


def dollars(value: float) -> str:
    """A sum of money with two digits that say something."""
    if value >= 1:
        return f"${value:,.2f}"
    if value >= 0.0001:
        return f"${value:#.2g}"
    return "< $0.0001" if value else "$0"


def table(whole, services: list, group="", rows="") -> str:
    """A row for each work and tool, a column for each service, and where the prices are from."""
    names = [name for name in rows.split(";") if name] or list(dict.fromkeys(row["name"] for row in whole["rows"]))
    lines = [f"| {TIMES:,} times | tool | {' | '.join(service['name'] for service in services)} |"]
    lines.append("|---" * (2 + len(services)) + "|")
    for name in names:
        for tool in whole["columns"]:
            requests = count_requests(whole, group, name, tool)
            if requests:
                out = bytes_out(whole, group, name, tool)
                sums = (dollars(TIMES * cost(service, requests, out)) for service in services)
                lines.append(f"| {name} | {tool} | {' | '.join(sums)} |")
    sources = "; ".join(f"{each['name']}: {each['source']}, {each['date']}" for each in services)
    return "\n".join([*lines, "", f"List prices: {sources}."])


def main():
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", type=Path)
    parser.add_argument("prices", nargs="?", type=Path, default=PRICES, help="(default: bench/prices.toml)")
    parser.add_argument("--group", default="no delay", help="of the record's rows (default: no delay)")
    parser.add_argument("--rows", default="", help="only these, with ';' between them")
    asked = parser.parse_args()
    print(table(record.load(asked.record), load_prices(asked.prices), asked.group, asked.rows))


if __name__ == "__main__":
    main()
