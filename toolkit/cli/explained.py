"""Which messages docs/troubleshooting.md explains, by section: written by `make docs`."""

from __future__ import annotations

OR = " | "
GAP = "…"

EXPLAINED = {
    "before-any-host-is-contacted": """
write one: toolkit init; or name it: --hosts … or | names no host that could be one of a cluster | unknown
key; | belongs to a host | belongs to the cluster | is a number in base … to YAML | is a boolean to some
YAML readers | written twice | is set for every rank by the toolkit or the launcher; remove it | lists no
GPU | holds indexes and UUIDs | stands in … already | for no limit write unlimited | Linux knows no
unlimited number of files | there is no file | secrets/ | every user of this machine may use | IPv6
addresses are not read here | there is no such file in …; another folder: --workdir | is outside …, the
folder that is sent; see --workdir | ranks asked for, but there are … slots | ranks asked for, but the hosts
have … slots | is not a host of the file
""",
    "ssh-to-the-hosts": """
its ssh host key is not known yet | on record is one of another kind | leaves it to a @cert-authority, which
is not supported here | its ssh host key has CHANGED | its ssh host key is REVOKED | RevokedHostKeys …
cannot be read | RevokedHostKeys … is a key revocation list, which is not supported here | ssh's
configuration says UserKnownHostsFile none | ssh does not let us in as | the name … is not known here | no
answer from … port …: off, cut off, or behind a firewall | nothing listens at … port …: connection refused |
takes the connection and then says nothing: frozen, or far too busy | what answers at … port … is no sshd,
or one that hangs up at once | it does not lead on to … port | its jump hosts lead in a circle | the
ProxyCommand does not lead to an sshd | ssh reaches … by ProxyUseFdpass, which is not supported here | ssh
cannot read its configuration | ssh takes longer than … s to read its configuration | user … can log in
there, but runs no command | the connection was lost | the connection was lost before the command ended |
not recorded: it differs from the key on record | cannot ask here, use --yes | its answer to the first
questions is cut short | no host can be used
""",
    "docker-on-the-hosts": """
docker is not installed | user … may not use docker | the docker engine is not running | the docker engine
does not answer | docker is Podman under another name there | podman is not installed | would stop or spoil
a job | main does not say that job | a cluster named … of user … is there already | somebody else took the
port in the meantime | is held by | the engine, being root, may not enter our folders in | the engine, being
root, may not see | the state directory is not safe | belongs to somebody else | is not ours to remove |
cannot tell whether parts of image | its main does not say that job | the engine may not set the limit | the
engine has no means to give a container GPUs | could not select device driver | failed to discover GPU
vendor from CDI | CDI is switched off in the engine | the engine's CDI specification does not name these
GPUs | its specification names no | docker there cannot give GPUs to containers | a folder to be mounted is
not there | the docker engine may not enter a folder to be mounted, as on NFS with root_squash | the image
has gone from the host | the image lacks | the image has no /usr/sbin/sshd | the image … has no | the docker
engine there may not raise limits | killed on the host, perhaps because it has run out of memory | the host
is out of memory | ended with status
""",
    "data": """
is not whole in | is another than other hosts have | is there already and is not the toolkit's | has changed
since the plan was made | the ssh user may not write there | no room for the data in | another command is at
work in | it has no python3 of ….… or newer, and no image with one
""",
    "disks": """
no room for it in | the disk is full | the disk was full | no inode free for another file on | over the disk
quota | what is to be written to is read-only | cannot write to
""",
    "image": """
neither this machine nor any host has the image | the hosts hold different images under | the image … is for
| the registry does not let the host's user have it | the registry has no such image | the host does not
reach the registry | does not trust the registry's connection | what arrived is not what was sent | is not
the image that the plan was made for | the whole image, as its layers cannot be read | it has no python3 |
not from another host: | after the others: | took nothing for … s | the engine does not keep all of the
image | a container is made from it | no Docker engine answers on this machine | the much larger CUDA build
is not taken in its place | pip cannot fetch the wheels of the image | has … MB, more than the … MB that an
image of flavour … may have | this edit no longer applies | The base image has Python … but the wheels are
for
""",
    "network-and-ports": """
cannot tell which of its addresses the other hosts reach | data_address … is not one of its addresses | port
… on … is held by | the container has died | not ready after … s | no end after … s
""",
    "jobs": """
needs ssh, and transport is | nobody listens any more: what started the job went away before its ranks had
begun | ended, as the job has failed on another host | nothing answers there: | this host reports on the job
but takes no part in it; the report is ignored | have different records of it | cannot follow | cannot end …
on …, which does not answer | the launcher has asked for nothing on | no running container on | container …
does not run | slots are needed and … are free | slot … of … was taken by job … a moment ago | is lost: |
stood still for … s, and the job's ranks have been ended | the job was not started | cannot read the code to
send | the code to send changes | was changed while it was sent | got shorter while it was sent | big files
go to every host with the code | of code go to every host | the folder of job … is there already | cannot be
read back as it was written | job … has no | job … has written nothing to | these differ from what would
come, and nothing was brought | is a symbolic link, and no file is written through it | lists a file that
was not requested | sends more than | the answer of send_files is not valid | a larger file has taken its
place since it was listed | reports a job whose id is not valid | it has not answered for … s | its
container has not answered for … s | lost sight of | ended with exit code | was killed for lack of memory |
was killed by | its lease sent a line that is not of the protocol | its lease failed | the supervisor failed
| needs … open files for … hosts, and the hard limit of its container is | has no room for the job's records
in | vanished: its rank.py was killed | restart … of … by … itself, on | goes with torch's CUDA build alone
| starts ranks itself, and would do so once for every rank | ranks does the same work | was built without |
the image has no Accelerate | the image has no Ray | Ray on … did not listen at | did not join | Horovod
with Gloo meets at an HTTP server on main | restart … of … in … s | given up after | no restart: | and
--min-hosts is | no rank has printed for … s | the program that reads it was ended | the launcher made a
world of … ranks, the job asked for | cannot start | cannot say that nothing is left on | the supervisor was
lost | the supervisor is gone and has left no result | the containers on … would be made anew | cannot write
| is there already; another name, please | no stacks on …: the image has no py-spy | is not there: the
cluster was made by an older toolkit | is the end of … job ids | no job has run on this cluster | there is
no job
""",
    "services": """
not ready after … s; last words | the cluster's image does nothing by itself | is asked on the first of its
ports | its sshd forbids forwarding | nothing answers at | the engine has no bridge | port … of this machine
""",
    "smoke": """
nvidia-smi in a fresh container | was given … and sees … of them | GPUs are declared | gpus: names | the
NVIDIA driver was updated, and the kernel still runs the old one | the NVIDIA driver is not loaded | a GPU
does not answer any more | nvidia-smi hangs | no GPU is used: | no host has or declares a GPU: a CPU cluster
""",
    "down": """
still there: | the archive of the records cannot be read | the archive of the records ends early | to go on
without them: toolkit down --no-save
""",
    "other-versions-of-the-toolkit": """
made by toolkit …, this is | its programs differ from those of this toolkit | the programs on … are not
those of this toolkit | the cluster was made by toolkit … on …, this one is | its programs on … would be
replaced | : made by toolkit …, newer than this
""",
    "lab-demo-tests": """
no Docker engine answers, and only root can install or start one | there is an engine, but … may not use it
| debootstrap needs root | is up, but this machine cannot reach … port | lab … exists with other settings |
lab … has … hosts, not | lab … has its files in | is not empty and not a lab's
""",
}
