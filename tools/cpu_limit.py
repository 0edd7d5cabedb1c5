"""The limit that oneDNN needs on this CPU, for the runs of `make` that use torch.

    python3 tools/cpu_limit.py ENVIRONMENT      say what is found for the environment in this folder

On some virtual machines torch's bf16 products end the process with SIGILL; src/rolltape/cpu_probe.py finds
that out in throw-away processes. The answer is kept beside the environment, for this environment, CPU and
kernel; a home that moves to another machine is asked anew. ROLLTAPE_CPU_ISA decides:

    probe   find out (the default)
    limit   set the limit, whatever the CPU does
    free    set none, whatever the CPU does

A value of ONEDNN_MAX_CPU_ISA that is there already stays. Standard library only.
"""

from __future__ import annotations

import hashlib
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

CHOICE = "ROLLTAPE_CPU_ISA"
PROBE = Path(__file__).resolve().parent.parent / "src" / "rolltape" / "cpu_probe.py"
"""Read as a file: the package that it is in may need what is not installed here."""
VARIABLE, LIMITS = map(runpy.run_path(str(PROBE)).__getitem__, ("VARIABLE", "LIMITS"))
TOLD = ("vendor_id", "cpu family", "model", "model name", "stepping", "microcode", "flags", "Features")
"""What /proc/cpuinfo says about instructions; the last is ARM's word for flags."""


class WrongChoice(Exception):
    """ROLLTAPE_CPU_ISA is none of its three values."""


def limit_for(env: Path) -> tuple[dict[str, str], str]:
    """What to add to the environment variables of runs with this environment's Python, and why, in a line."""
    choice, own = os.environ.get(CHOICE) or "probe", os.environ.get(VARIABLE)
    if choice not in ("probe", "limit", "free"):
        raise WrongChoice(f"{CHOICE}={choice} must be probe, limit or free")
    if own:
        return {}, f"{VARIABLE}={own} is set and stays"
    if choice == "free":
        return {}, f"{CHOICE}=free: no limit for oneDNN, not asked whether this CPU needs one"
    if choice == "limit":
        limit = LIMITS[0]
        return {VARIABLE: limit}, f"{CHOICE}=limit: {VARIABLE}={limit}"
    answer = _answer(env)
    if answer["failed"]:
        return {}, f"bf16 in torch could not be tried on this CPU: {answer['failed']}"
    if not answer["died_by"]:
        return {}, "bf16 in torch works on this CPU, no limit for oneDNN"
    died = f"bf16 in torch ends with {answer['died_by']} on this CPU"
    if not answer["limit"]:
        return {}, f"{died}, also under {', '.join(LIMITS)}: tests that use it will fail"
    return {VARIABLE: answer["limit"]}, f"{died}: {VARIABLE}={answer['limit']}"


def cpu() -> dict[str, str]:
    """What tells this CPU from another one, as far as its instructions go."""
    known = {"machine": os.uname().machine, "kernel": f"{os.uname().release} {os.uname().version}"}
    try:
        first = Path("/proc/cpuinfo").read_text(errors="replace").partition("\n\n")[0]
    except OSError:  # not Linux
        return known
    pairs = (line.partition(":") for line in first.splitlines())
    return known | {name.strip(): value.strip() for name, _, value in pairs if name.strip() in TOLD}


def _answer(env: Path) -> dict[str, str | None]:
    """What the probe says, or said before; a failure to find out is not kept."""
    key = hashlib.sha256(json.dumps(cpu(), sort_keys=True).encode() + PROBE.read_bytes()).hexdigest()[:12]
    kept = env.with_name(f"{env.name}.cpu-{key}.json")
    if kept.exists():
        return json.loads(kept.read_text())
    # A PYTHONPATH may hold another torch than the environment's.
    environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    command = [str(env / "bin" / "python"), "-I", str(PROBE)]
    done = subprocess.run(command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        return {"failed": (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]}
    answer = json.loads(done.stdout)
    if not answer["failed"]:
        new = kept.with_name(f"{kept.name}.{os.getpid()}")  # several sessions may find out at the same time
        new.write_text(json.dumps({**answer, "cpu": cpu()}, indent=2) + "\n")
        new.replace(kept)
    return answer


def main(env: str) -> None:
    try:
        print(limit_for(Path(env).absolute())[1])
    except WrongChoice as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(*sys.argv[1:])
