"""The command ``autotune``, and ``python -m autotune``."""

import signal
import sys


def main() -> int:
    """Run the command line and return its exit code."""
    # Until there is somebody to catch it, Ctrl-C ends this process as it ends any other: at once,
    # and without a traceback.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from autotune.cli import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
