"""All cases, by name: what the product promises first, what is only compared later."""

from cases import (
    backup,
    filesystem,
    floor,
    hydrate,
    live_engines,
    measuring,
    micro,
    mounted,
    own,
    publishing,
    remote_store,
    snapshots,
    startup,
    sync,
    sync_remote,
    unpacked,
)

SPACE, RESTORE, BACKUP = backup.CASES
ALL = {
    case.name: case
    for case in (
        filesystem.CASE,
        floor.CASE,
        SPACE,
        RESTORE,
        remote_store.CASE,
        mounted.CASE,
        unpacked.CASE,
        sync.CASE,
        sync_remote.CASE,
        measuring.CASE,
        snapshots.CASE,
        hydrate.CASE,
        publishing.CASE,
        live_engines.CASE,
        startup.CASE,
        *own.CASES,
        BACKUP,
        micro.CASE,
    )
}
