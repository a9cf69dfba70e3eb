"""The kernels compile for GPUs: the interpreter accepts what the compiler does not."""

import os
import subprocess
import sys
from pathlib import Path


def test_every_kernel_compiles_for_a_gpu_that_is_not_there(tmp_path):
    # A process of its own: interpreter and compiler cannot share one. A cache of its own: what is
    # to be shown is that the source of today compiles.
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-m", "conformance", "compile", "--target", "sm_90"],
        cwd=Path(__file__).parent.parent,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 failed" in done.stdout
