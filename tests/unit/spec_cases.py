"""Faulty hosts.yaml texts by name; their messages are in tests/golden/spec/invalid.txt."""

from __future__ import annotations

HEAD = "cluster: demo\nimage: trainer:1\n"
GOOD = HEAD + "hosts: [gpu1, gpu2]\n"
_UUID = "GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77"


def _host(settings: str) -> str:
    return f"{HEAD}hosts:\n  gpu1: {{{settings}}}\n  gpu2:\n"


CASES: dict[str, str | bytes] = {
    # Not YAML, or not text
    "empty": "",
    "only comments": "# nothing\n",
    "list at top": "- gpu1\n",
    "text at top": "cluster:demo\n",
    "number at top": "3\n",
    "not utf-8": b"cluster: demo\nimage: caf\xe9\n",
    "utf-16": GOOD.encode("utf-16"),
    "too large": GOOD + "#" * (1024 * 1024),
    "control character": GOOD.replace("demo", "de\x07mo"),
    "line separator": GOOD.replace("demo", "de\u2028mo"),
    "escaped control character": _host(r'user: "al\x07ice"'),
    "lone surrogate": GOOD.replace("demo", "de\ud800mo"),
    "old Mac line ends": GOOD.replace("\n", "\r"),
    "tabs": HEAD + "hosts:\n\tgpu1:\n\t\tslots: 1\n",
    "tab after blanks": HEAD + "hosts:\n  gpu1:\n  \tslots: 1\n",
    "tab on an empty line": HEAD + "hosts:\n  gpu1:\n  \t\n  gpu2:\n",
    "no blank after colon": HEAD + "hosts:\n  gpu1:\n    port:22\n    slots: 1\n",
    "no colon": HEAD + "hosts:\n  gpu1:\n    slots: 1\n    port 22\n  gpu2:\n",
    "key without a colon at the end": GOOD + "main gpu1\n",
    "directive": GOOD + "%x\n",
    "colon inside a value": GOOD + "known_hosts: a: b\n",
    "quote not closed": GOOD + "known_hosts: 'a\nlauncher: mpirun\n",
    "bracket not closed": HEAD + "hosts: [gpu1, gpu2\nlauncher: mpirun\n",
    "brace not closed": HEAD + "hosts: {gpu1: , gpu2: \nlauncher: mpirun\n",
    "wrong indentation": HEAD + "hosts:\n    gpu1:\n  gpu2:\n",
    "list item beside keys": HEAD + "hosts:\n- gpu1\n  gpu2:\n- gpu3\nx\n",
    "at sign": GOOD + "known_hosts: @home\n",
    "unknown escape": GOOD + 'known_hosts: "C:\\keys"\n',
    "bare star": GOOD + "known_hosts: *\n",
    "two documents": GOOD + "---\n" + GOOD,
    "too deep": GOOD + "env: " + "[" * 40 + "]" * 40 + "\n",
    # YAML's own surprises
    "duplicate key at top": GOOD + "cluster: other\n",
    "duplicate host": HEAD + "hosts:\n  gpu1:\n  gpu1: {slots: 2}\n",
    "duplicate setting": HEAD + "hosts:\n  gpu1:\n    slots: 1\n    slots: 2\n",
    "sexagesimal": _host("port: 22:22"),
    "norwegian host": HEAD + "hosts:\n  no:\n  se:\n",
    "on and off": GOOD + "known_hosts: on\nlauncher: off\n",
    "octal": _host("slots: 010"),
    "hexadecimal": _host("slots: 0x10"),
    "underscore": _host("port: 1_022"),
    "date": GOOD.replace("demo", "2026-01-02"),
    "exponent": GOOD.replace("trainer:1", "1e3"),
    "infinity": _host("slots: .inf"),
    "huge number": _host("slots: " + "9" * 5000),
    "anchor and alias": HEAD + "hosts:\n  gpu1: &same {slots: 1}\n  gpu2: *same\n",
    "merge key": HEAD + "hosts:\n  gpu1: &same {slots: 1}\n  gpu2:\n    <<: *same\n    slots: 2\n",
    "tag": _host("slots: !!int '8'"),
    "custom tag": GOOD.replace("trainer:1", "!env IMAGE"),
    "python tag": GOOD.replace("demo", "!!python/object/apply:os.system [id]"),
    "number as key": HEAD + "hosts:\n  1:\n  2: {slots: -1}\n",
    "boolean as key": GOOD + "env: {true: 'x'}\n",
    "list as key": HEAD + "hosts:\n  ? [gpu1, gpu2]\n  : {slots: 1}\n  gpu3:\n",
    "secret that looks octal": GOOD + "env: {PIN: 01234, AT: 12:30}\n",
    # Keys
    "nothing required is there": "launcher: mpirun\n",
    "unknown key, near": GOOD + "lancher: mpirun\n",
    "unknown key, far": GOOD + "xyz: 1\n",
    "unknown setting": _host("sltos: 1"),
    "setting at top": GOOD + "user: alice\n",
    "top key at a host": _host("shm_size: 1g"),
    "keys without values": HEAD + "hosts: [gpu1]\nmain:\nworker_port:\nlauncher:\n",
    # Top level
    "cluster in capitals": GOOD.replace("demo", "Demo"),
    "cluster too long": GOOD.replace("demo", "d" * 33),
    "cluster is a number": GOOD.replace("demo", "7"),
    "image in capitals": GOOD.replace("trainer:1", "Team/Trainer:1"),
    "image with blanks": GOOD.replace("trainer:1", "trainer : 1"),
    "image is a number": GOOD.replace("trainer:1", "1.10"),
    "image is an option": GOOD.replace("trainer:1", "--privileged"),
    "main is no host": GOOD + "main: gpu3\n",
    "main is a list": GOOD + "main: [gpu1]\n",
    "main is a mapping": GOOD + "main: {gpu1: }\n",
    "hosts is text": HEAD + "hosts: gpu1\n",
    "hosts is a number": HEAD + "hosts: 2\n",
    "hosts is nothing": HEAD + "hosts:\n",
    "no hosts": HEAD + "hosts: []\n",
    "port out of range": GOOD + "worker_port: 80\n",
    "port is text": GOOD + "worker_port: '12345'\n",
    "port is a fraction": GOOD + "worker_port: 12345.5\n",
    "port is a boolean": GOOD + "worker_port: true\n",
    "shm without unit": GOOD + "shm_size: 8\n",
    "shm too small": GOOD + "shm_size: '8'\n",
    "shm with an unknown unit": GOOD + "shm_size: 8 gigabytes\n",
    "unknown launcher": GOOD + "launcher: horovod\n",
    "unknown network": GOOD + "network: infinband\n",
    "network is not text": GOOD + "network: [auto]\n",
    "known_hosts is an option": GOOD + "known_hosts: -oProxyCommand=id\n",
    # Hosts
    "host names": HEAD + "hosts: [GPU1, gpu_1, '-x', localhost, '12', a.b, 5, '']\n",
    "addresses as host names": HEAD
    + "hosts: [10.0.0.1, alice@10.0.0.2, alice@gpu1, a@b@c, gpu1.example.com]\n",
    "hosts as a list of settings": HEAD
    + "hosts:\n  - name: gpu1\n    address: 10.0.0.1\n  - gpu2: {slots: 1}\n",
    "host listed twice": HEAD + "hosts: [gpu1, gpu2, gpu1]\n",
    "host is text": HEAD + "hosts:\n  gpu1: 10.0.0.1\n",
    "address with user": _host("address: alice@box"),
    "address with port": _host("address: 'box:2222'"),
    "address is an option": _host("address: -oProxyCommand=id"),
    "address is IPv6": _host("address: 'fe80::1'"),
    "address is no IPv4": _host("address: 10.0.0.300"),
    "address with blanks": _host("address: 'box one'"),
    "address very long": _host(f"address: {'a' * 400}"),
    "same address": HEAD + "hosts:\n  gpu1: {address: box}\n  gpu2: {address: BOX, port: 22}\n  box:\n",
    "data address is a name": _host("data_address: gpu1"),
    "data address is loopback": _host("data_address: 127.0.1.1"),
    "same data address": HEAD
    + "hosts:\n  gpu1: {data_address: 10.0.0.1}\n  gpu2: {data_address: 10.0.0.1}\n",
    "user": _host("user: -l, jump: '-J x'"),
    "user with a blank": _host("user: 'alice smith'"),
    "jump": _host("jump: 'gate; id'"),
    "ssh port": _host("port: 0"),
    "public key": _host("identity_file: ~/.ssh/id_ed25519.pub"),
    "empty path": _host("identity_file: ''"),
    "slots is text": _host("slots: '8'"),
    "slots below zero": _host("slots: -1, gpus: -1"),
    "no slots on a worker": HEAD + "hosts:\n  gpu1:\n  gpu2: {slots: 0}\n",
    "no slots at all": HEAD + "hosts:\n  gpu1: {slots: 0}\n",
    "more slots than gpus": _host("slots: 8, gpus: 4"),
    # Environment; what may be a secret is never shown
    "env values": GOOD + "env: {A: 1, B: true, C: 1.5, D: , E: [x], F: {x: y}}\n",
    "env is text": GOOD + "env: TOKEN=hunter2\n",
    "env with equals signs": GOOD + "env: {TOKEN=hunter2, PIN=hunter2: }\n",
    "env is a list": GOOD + "env: [TOKEN=hunter2]\n",
    "yes in env": GOOD + "env: {NCCL_DEBUG: yes, NCCL_IB_DISABLE: On, DEBUG: true}\n",
    "one advice for a refused variable": GOOD + "env: {RANK: 3, WORLD_SIZE: , TOOLKIT_X: true, 2ND: 1}\n",
    "env names": GOOD + "env: {MY-VAR: a, 2ND: b, '': c, RANK: d, TOOLKIT_JOB: e, OMPI_COMM_WORLD_RANK: f}\n",
    "variables of containers": GOOD + "env: {NVIDIA_VISIBLE_DEVICES: '0', NVIDIA_DRIVER_CAPABILITIES: all}\n",
    "host env": _host("env: {TOKEN: 12345678, WORLD_SIZE: '2'}"),
    # The image's origin
    "image is a list": GOOD.replace("trainer:1", "[trainer:1]"),
    "image without a name": GOOD.replace("trainer:1", "{pull: missing}"),
    "image pulled at will": GOOD.replace("trainer:1", "{name: Trainer:1, pull: sometimes}"),
    "image pulled by a boolean": GOOD.replace("trainer:1", "{name: trainer:1, pull: true, tag: x}"),
    "image is nothing": GOOD.replace("trainer:1", ""),
    # GPUs
    "gpus is text": _host("gpus: '0,1'"),
    "gpus is true": _host("gpus: true"),
    "gpus is a mapping": _host("gpus: {count: 2}"),
    "gpus is nothing": _host("gpus: "),
    "too many gpus": _host("gpus: 5000"),
    "no gpu in the list": _host("gpus: []"),
    "gpu list items": _host(
        "gpus: ['0', -1, 1.5, all, GPU-1a, GPU-5D5BA0D6-D33D-2B2C-524D-9E3D8D2B8A77, [0], ~]"
    ),
    "gpu listed twice": _host("gpus: [0, 1, 0]"),
    "gpu uuid listed twice": _host(f"gpus: [{_UUID}, {_UUID}]"),
    "indexes and uuids": _host(f"gpus: [0, {_UUID}]"),
    "more slots than gpus in the list": _host("slots: 3, gpus: [0, 1]"),
    # Secrets: the message shows neither a value nor a text in the place of a path
    "secrets is text": GOOD + "secrets: hunter2\n",
    "secrets is a list": GOOD + "secrets: [hunter2]\n",
    "secret values": GOOD + "secrets: {A: 12345678, B: , C: [hunter2], D: '', E: -hunter2, F: true}\n",
    "secret names": GOOD + "secrets: {MY-KEY: a, TOKEN=hunter2: b, RANK: c, NVIDIA_VISIBLE_DEVICES: d}\n",
    "secret that is a variable too": HEAD
    + "hosts:\n  gpu1: {env: {B: x}}\n  gpu2:\nenv: {A: x}\nsecrets: {A: a, B: b, C: c}\n",
    # Labels
    "labels is a list": GOOD + "labels: [team=vision]\n",
    "label names": GOOD
    + "labels: {'': a, -x: b, a b: c, a=b: d, toolkit.role: e, toolkit: f, com.docker.x: g}\n",
    "label values": GOOD + 'labels: {a: 1, b: true, c: , d: [x], e: "two\\nlines"}\n',
    # Limits
    "ulimits is a list": GOOD + "ulimits: [nofile=1024]\n",
    "ulimit names": GOOD + "ulimits: {nofiles: 1, as: 1, NOFILE: 1}\n",
    "ulimit values": GOOD
    + "ulimits: {cpu: -1, data: -2, fsize: 8g, core: '5', rss: 1.5, stack: , nproc: [1]}\n",
    "ulimit ends": GOOD
    + "ulimits: {cpu: {soft: 1}, data: {soft: 2, hard: 1}, rss: {soft: unlimited, hard: 1}, core: {m: 1}}\n",
    "ulimit end values": GOOD + "ulimits: {cpu: {soft: '1', hard: true}, data: {soft: -1, hard: }}\n",
    "unlimited files": GOOD + "ulimits: {nofile: unlimited}\n",
    # Mounts
    "mounts is text": GOOD + "mounts: /data:/data\n",
    "mount forms": GOOD
    + "mounts: [/data, 'a:/b', '~/data:/data', '/a:b', '/a:/b:rw:ro', '/a:/b:z', 3, ~, [a]]\n",
    "state directory": GOOD + "state_dir: ~/state\n",
    "state directory relative": GOOD + "state_dir: scratch/../x\n",
    "state directory root": GOOD + "state_dir: //\n",
    "mount steps": GOOD + "mounts: [/a/../b:/c, /a:/b/./c]\n",
    "mount targets": GOOD
    + "mounts: ['/a:/', '/a:/run', '/a:/run/toolkit/conf', '/a:/proc', '/a:/dev/shm', '/a:/etc']\n",
    "mount target twice": GOOD + "mounts:\n- /a:/data\n- {source: /b, target: /data/}\n",
    "mount mapping": GOOD
    + "mounts:\n- {source: /a:b, readonly: yes}\n- {source: 3, target: /x, read_only: 1}\n",
    # Data
    "data is a mapping": GOOD + "data: {source: x, path: /a, target: /b}\n",
    "data is text": GOOD + "data: [./x:/a:/b]\n",
    "mounts without a space": GOOD + "mounts:\n  -/srv:/data\n",
    "a key of a host as a host": HEAD + "hosts:\n  gpu1:\n  slots: 2\n",
    "data keys": GOOD + "data:\n- {source: x, target: /b}\n- {source: x, path: /a, target: /b, mode: ro}\n",
    "data source": GOOD + "data: [{source: '', path: /a, target: /b}, {source: $X, path: /c, target: /d}]\n",
    "data path": GOOD
    + "data:\n"
    + "".join(
        f"- {{source: x, path: {path}, target: /d{number}}}\n"
        for number, path in enumerate(
            ("a", "~/a", "/", "/etc/x", "/a/../b", "'/a:b'", "'/a,b'", "/usr/local/x", "3")
        )
    ),
    "data target": GOOD + "data: [{source: x, path: /a, target: /proc}, {source: x, path: /b, target: d}]\n",
    "data target twice": GOOD
    + "mounts: [/m:/t]\ndata: [{source: x, path: /a, target: /t/}, {source: x, path: /b, target: /t}]\n",
    "data paths in one another": GOOD
    + "data: [{source: x, path: /a/b, target: /c}, {source: y, path: /a/, target: /d},"
    + " {source: y, path: /a/bc, target: /e}]\n",
    # Services
    "services is a list": GOOD + "services: [tensorboard]\n",
    "service is nothing": GOOD + "services: {tb: }\n",
    "service names": GOOD + "services: {TB: {command: x}, a_b: {command: x}, '': {command: x}}\n",
    "service keys": GOOD
    + "services: {tb: {command: x, port: 1, cluster: x, mounts: [{source: /a, target: /b, mode: x}]}}\n",
    "service commands": GOOD + "services: {a: {command: ''}, b: {command: []}, c: {command: [x, 3]}}\n",
    "more service commands": GOOD + 'services: {d: {command: "it\'s"}, e: {command: 3}}\n',
    "service without a command": GOOD + "services: {a: {ports: [80]}, b: {image: x:1}}\n",
    "service values": GOOD
    + "services: {a: {command: x, host: gpu9, ports: 80, gpus: two, health: healthz, start_within: 0}}\n",
    "service ports": GOOD + "services: {a: {command: x, ports: [80, 0, 70000, '81', 80]}}\n",
    "service health without a port": GOOD + "services: {a: {command: x, health: /}}\n",
    "service environment": GOOD + "services: {a: {command: x, env: {TOKEN: 1234, =x: y}, gpus: [0, 0]}}\n",
    "service without a GPU": GOOD + "services: {a: {command: x, gpus: []}}\n",
    "service mount twice": GOOD
    + "mounts: [/a:/x, /b:/x]\nservices: {s: {command: x, mounts: [/c:/x, /d:/y, /e:/y]}}\n",
    # All at once, in the file's order, whatever layer finds them
    "many": (
        "cluster: Demo\nimage: trainer:1\nmain: gpu9\nhosts:\n  gpu1: {slots: '8', port: 22:22}\n"
        "  gpu2:\n    slots: 0\n    slots: 1\n    addres: x\nmounts: [/a:/proc]\nlauncher: slurm\n"
    ),
}
