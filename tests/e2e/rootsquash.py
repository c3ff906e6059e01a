"""A folder as an NFS share with root_squash would show it: real FUSE, requests of root count as nobody's.

usage: python3 rootsquash.py PID SOURCE TARGET [TYPE]    as root, where the practice cluster runs

Mounts SOURCE at TARGET in the mount namespace of process PID and serves it from there until it is ended.
It implements the kernel's protocol itself (linux/fuse.h, version 7.31) on /dev/fuse, which practice hosts
cannot open. Each request is carried out with the caller's uid and gid as this process's file system ids,
65534 in place of 0: so the kernel itself judges what the caller may do, as an NFS server does. Groups other
than the first are not known to it, as they are not to a server that manages gids on its own.
"""

# Paths are bytes here, as the kernel gives them.
# ruff: noqa: PTH101, PTH102, PTH104, PTH106, PTH108, PTH115, PTH118, PTH211

from __future__ import annotations

import ctypes
import errno
import os
import signal
import stat
import struct
import sys
from collections.abc import Callable

NOBODY = 65534
CLONE_NEWNS = 0x20000
MNT_DETACH = 2

_IN = struct.Struct("=IIQQIIII")  # length, opcode, unique, node, uid, gid, pid, padding
_OUT = struct.Struct("=IiQ")
_ATTR = struct.Struct("=QQQQQQIIIIIIIIII")
_LIBC = ctypes.CDLL(None, use_errno=True)


class Share:
    """One mounted share; nodes are paths, which are valid while no other program renames folders."""

    def __init__(self, source: str) -> None:
        self.paths: dict[int, bytes] = {1: os.fsencode(source)}
        self.nodes: dict[bytes, int] = {os.fsencode(source): 1}
        self.handles: dict[int, int] = {}
        self.lists: dict[int, list[tuple[int, bytes, int]]] = {}
        self.next = 2
        self.does: dict[int, Callable[[int, bytes], bytes]] = {
            **{1: self.lookup, 3: self.getattr, 4: self.setattr, 5: self.readlink, 6: self.symlink},
            **{8: self.mknod, 9: self.mkdir, 10: self.unlink, 11: self.rmdir, 12: self.rename},
            **{13: self.link, 14: self.open, 15: self.read, 16: self.write, 17: self.statfs},
            **{18: self.release, 20: self.fsync, 25: self.fsync, 26: self.init, 27: self.opendir},
            **{28: self.readdir, 29: self.releasedir, 30: self.fsync, 34: self.access, 35: self.create},
            45: self.rename2,
        }

    def serve(self, fd: int) -> None:
        while True:
            try:
                data = os.read(fd, 2**20 + 4096)
            except OSError as error:
                if error.errno in (errno.EINTR, errno.ENOENT, errno.EAGAIN):
                    continue
                return  # unmounted
            _, opcode, unique, node, uid, gid, _, _ = _IN.unpack_from(data)
            if opcode in (2, 36, 42):  # FORGET, INTERRUPT, BATCH_FORGET want no answer
                continue
            _LIBC.setfsgid(gid if gid else NOBODY)
            _LIBC.setfsuid(uid if uid else NOBODY)
            try:
                said, fault = self.does[opcode](node, data[_IN.size :]), 0
            except KeyError:
                said, fault = b"", errno.ENOSYS
            except OSError as error:
                said, fault = b"", error.errno or errno.EIO
            finally:
                _LIBC.setfsuid(0)
                _LIBC.setfsgid(0)
            os.write(fd, _OUT.pack(_OUT.size + len(said), -fault, unique) + said)

    # Names and attributes

    def child(self, node: int, name: bytes) -> bytes:
        return os.path.join(self.paths[node], name.partition(b"\0")[0])

    def entry(self, path: bytes) -> bytes:
        about = os.lstat(path)
        if path not in self.nodes:
            self.nodes[path], self.paths[self.next] = self.next, path
            self.next += 1
        # Nothing is kept in the kernel's cache: the next caller may be another one.
        return struct.pack("=QQQQII", self.nodes[path], 0, 0, 0, 0, 0) + _attr(about)

    def lookup(self, node: int, data: bytes) -> bytes:
        return self.entry(self.child(node, data))

    def getattr(self, node: int, data: bytes) -> bytes:
        return struct.pack("=QII", 0, 0, 0) + _attr(os.lstat(self.paths[node]))

    def setattr(self, node: int, data: bytes) -> bytes:
        valid, _, handle, size, _, atime, mtime, _, ans, mns, _, mode, _, uid, gid, _ = struct.unpack_from(
            "=IIQQQQQQIIIIIIII", data
        )
        path = self.paths[node]
        if valid & 1:
            os.chmod(path, stat.S_IMODE(mode))
        if valid & 6:
            os.chown(path, uid if valid & 2 else -1, gid if valid & 4 else -1, follow_symlinks=False)
        if valid & 8:
            os.truncate(self.handles[handle] if valid & 64 and handle in self.handles else path, size)
        if valid & (16 | 32 | 128 | 256):
            now = os.lstat(path)
            times = (
                atime * 10**9 + ans if valid & 16 and not valid & 128 else now.st_atime_ns,
                mtime * 10**9 + mns if valid & 32 and not valid & 256 else now.st_mtime_ns,
            )
            # "Now" for both needs the right to write, any other time needs the owner.
            now_for_both = valid & 128 and valid & 256
            how = {} if now_for_both else {"ns": times}
            os.utime(path, **how, follow_symlinks=False)
        return self.getattr(node, b"")

    def access(self, node: int, data: bytes) -> bytes:
        # faccessat with the ids of the file system, which is what the server would judge by.
        if not os.access(self.paths[node], struct.unpack_from("=I", data)[0], effective_ids=True):
            raise OSError(errno.EACCES, "")
        return b""

    def readlink(self, node: int, data: bytes) -> bytes:
        return os.readlink(self.paths[node])

    def statfs(self, node: int, data: bytes) -> bytes:
        s = os.statvfs(self.paths[node])
        return struct.pack(
            "=QQQQQIIII24x",
            *(s.f_blocks, s.f_bfree, s.f_bavail, s.f_files, s.f_ffree, s.f_bsize, s.f_namemax, s.f_frsize, 0),
        )

    # What changes folders

    def symlink(self, node: int, data: bytes) -> bytes:
        name, target, _ = data.split(b"\0", 2)
        path = os.path.join(self.paths[node], name)
        os.symlink(target, path)
        return self.entry(path)

    def mknod(self, node: int, data: bytes) -> bytes:
        mode, device, mask, _ = struct.unpack_from("=IIII", data)
        path = self.child(node, data[16:])
        os.mknod(path, mode & ~mask, device)
        return self.entry(path)

    def mkdir(self, node: int, data: bytes) -> bytes:
        mode, mask = struct.unpack_from("=II", data)
        path = self.child(node, data[8:])
        os.mkdir(path, mode & ~mask)
        return self.entry(path)

    def unlink(self, node: int, data: bytes) -> bytes:
        os.unlink(self.child(node, data))
        return b""

    def rmdir(self, node: int, data: bytes) -> bytes:
        os.rmdir(self.child(node, data))
        return b""

    def rename(self, node: int, data: bytes, head: int = 8) -> bytes:
        (to,) = struct.unpack_from("=Q", data)
        old, new, _ = data[head:].split(b"\0", 2)
        source, target = os.path.join(self.paths[node], old), os.path.join(self.paths[to], new)
        os.rename(source, target)
        # Folders take along what is known of the files in them.
        for path in [p for p in self.nodes if p == source or p.startswith(source + b"/")]:
            number = self.nodes.pop(path)
            self.paths[number] = target + path[len(source) :]
            self.nodes[self.paths[number]] = number
        return b""

    def rename2(self, node: int, data: bytes) -> bytes:
        if struct.unpack_from("=QI", data)[1]:
            raise OSError(errno.EINVAL, "")
        return self.rename(node, data, 16)

    def link(self, node: int, data: bytes) -> bytes:
        path = self.child(node, data[8:])
        os.link(self.paths[struct.unpack_from("=Q", data)[0]], path)
        return self.entry(path)

    # Files

    def open(self, node: int, data: bytes) -> bytes:
        (flags,) = struct.unpack_from("=I", data)
        handle = os.open(self.paths[node], flags & ~(os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW))
        self.handles[handle] = handle
        return struct.pack("=QII", handle, 0, 0)

    def create(self, node: int, data: bytes) -> bytes:
        flags, mode, mask, _ = struct.unpack_from("=IIII", data)
        path = self.child(node, data[16:])
        handle = os.open(path, flags | os.O_CREAT, mode & ~mask)
        self.handles[handle] = handle
        return self.entry(path) + struct.pack("=QII", handle, 0, 0)

    def read(self, node: int, data: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("=QQI", data)
        return os.pread(handle, size, offset)

    def write(self, node: int, data: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("=QQI", data)
        done = os.pwrite(handle, data[40 : 40 + size], offset)
        return struct.pack("=II", done, 0)

    def release(self, node: int, data: bytes) -> bytes:
        handle = self.handles.pop(struct.unpack_from("=Q", data)[0], None)
        if handle is not None:
            os.close(handle)
        return b""

    def fsync(self, node: int, data: bytes) -> bytes:
        return b""

    def opendir(self, node: int, data: bytes) -> bytes:
        handle, self.next = self.next, self.next + 1
        with os.scandir(self.paths[node]) as found:
            rows = [(one.inode(), one.name, one.stat(follow_symlinks=False).st_mode >> 12) for one in found]
        self.lists[handle] = [(1, b".", 4), (1, b"..", 4), *rows]
        return struct.pack("=QII", handle, 0, 0)

    def readdir(self, node: int, data: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("=QQI", data)
        said = b""
        for number, (inode, name, kind) in list(enumerate(self.lists[handle]))[offset:]:
            row = struct.pack("=QQII", inode, number + 1, len(name), kind) + name
            row += b"\0" * (-len(row) % 8)
            if len(said) + len(row) > size:
                break
            said += row
        return said

    def releasedir(self, node: int, data: bytes) -> bytes:
        self.lists.pop(struct.unpack_from("=Q", data)[0], None)
        return b""

    def init(self, node: int, data: bytes) -> bytes:
        ahead = struct.unpack_from("=IIII", data)[2]
        return struct.pack("=IIIIHHIIHH32x", 7, 31, ahead, 0, 16, 12, 2**17, 1, 32, 0)


def _attr(about: os.stat_result) -> bytes:
    times = [about.st_atime_ns, about.st_mtime_ns, about.st_ctime_ns]
    return _ATTR.pack(
        *(about.st_ino, about.st_size, about.st_blocks, *(t // 10**9 for t in times)),
        *(t % 10**9 for t in times),
        *(about.st_mode, about.st_nlink, about.st_uid, about.st_gid, about.st_rdev, about.st_blksize, 0),
    )


def main() -> None:
    pid, source, target = sys.argv[1:4]
    kind = os.fsencode("".join(sys.argv[4:]) or "fuse.share")
    fuse = os.open("/dev/fuse", os.O_RDWR)
    space = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY)
    if _LIBC.setns(space, CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "setns")
    os.chdir("/")
    os.setgroups([])
    os.umask(0)
    options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if _LIBC.mount(b"server:/share", os.fsencode(target), kind, 0, options):
        raise OSError(ctypes.get_errno(), "mount")

    def end(*_: object) -> None:
        _LIBC.umount2(os.fsencode(target), MNT_DETACH)

    signal.signal(signal.SIGTERM, end)
    print("mounted", flush=True)
    try:
        Share(source).serve(fuse)
    finally:
        end()


if __name__ == "__main__":
    main()
