"""All cases, by name: what the product promises first, what is only compared later."""

import importlib

ORDER = """filesystem floor space restore remote_store mounted unpacked sync sync_remote two_way measuring snapshots shapes find workspaces
hydrate publishing gateways python cluster live_engines startup pipeline engines backup micro""".split()
# Modules that have several cases.
MODULES = {"space": "backup", "restore": "backup", "pipeline": "own", "engines": "own"}


def find_case(name):
    """The case of a name, in its module."""
    module = importlib.import_module(f"cases.{MODULES.get(name, name)}")
    return next(case for case in ([module.CASE] if hasattr(module, "CASE") else module.CASES) if case.name == name)


ALL = {name: find_case(name) for name in ORDER}
