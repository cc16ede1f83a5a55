"""Runs a command as the user nobody, also where this interpreter is in a private folder.

Usage: ``as_nobody.py COMMAND...``, as root. Where a folder that other users may not enter (a home, mostly)
lies above the interpreter, its packages or the temporary folder, nobody's view of the machine shows these at
their places and nothing else of that folder.
"""

import ctypes
import os
import sys
import tempfile
from pathlib import Path

NOBODY = 65534
CLONE_NEWNS = 0x20000
MS_BIND, MS_REC, MS_SLAVE = 0x1000, 0x4000, 0x80000
OPEN_FOLDER = 0o005

libc = ctypes.CDLL(None, use_errno=True)


def check(call, result):
    if result != 0:
        raise SystemExit(f"{call}: {os.strerror(ctypes.get_errno())}")


def mount(source, target, kind, flags, data=None):
    arguments = [text and str(text).encode() for text in (source, target, kind)]
    check(f"mount on {target}", libc.mount(*arguments, ctypes.c_ulong(flags), data))


def needed_folders():
    """Of the interpreter, through all symbolic links to it, and of all that it may import."""
    program = Path(sys.executable)
    yield program.parent
    while program.is_symlink():
        program = program.parent / program.readlink()
        yield program.parent
    yield from (sys.prefix, sys.base_prefix, *sys.path, tempfile.gettempdir())


def private_ancestor(folder):
    """The outermost folder above this one that others may not enter."""
    return next((above for above in reversed(folder.parents) if not above.stat().st_mode & 0o001), None)


def open_up(folders):
    private = {folder: above for folder in folders if (above := private_ancestor(folder))}
    if not private:
        return
    check("unshare", libc.unshare(CLONE_NEWNS))
    mount("none", "/", None, MS_REC | MS_SLAVE)
    descriptors = {folder: os.open(folder, os.O_PATH) for folder in sorted(private)}
    for above in sorted(set(private.values())):
        mount("none", above, "tmpfs", 0, b"mode=755")
    for folder, descriptor in descriptors.items():
        folder.mkdir(parents=True, exist_ok=True)
        mount(f"/proc/self/fd/{descriptor}", folder, None, MS_BIND | MS_REC)
        os.close(descriptor)


def main(command):
    os.umask(0o022)
    given = {Path(name).absolute() for name in needed_folders()}
    folders = {path for folder in given for path in (folder, folder.resolve()) if path.is_dir()}
    # What is private itself, such as a home on the import path, nobody could not read in any place.
    open_up({path for path in folders if path.stat().st_mode & OPEN_FOLDER == OPEN_FOLDER})
    os.chdir("/")
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
