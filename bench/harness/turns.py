"""One entrant's turn in a round, in this process or in one of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

from . import libraries
from .cases import parse_case
from .tensors import make_sets
from .timing import timed_turn


class Here:
    """An entrant in this process."""

    def __init__(self, entrant, case, sets, threads):
        self._sets = sets
        self._call = libraries.make_call(entrant, case, sets, threads)
        self.ran = getattr(self._call, "ran", "")
        self.workspace_bytes = getattr(self._call, "workspace_bytes", None)

    def turn(self, pause, min_seconds):
        try:
            return timed_turn(self._call, len(self._sets), pause, min_seconds)
        finally:
            self._rest()

    def error(self):
        output = self._call(0)
        self._rest()
        return self._sets.error(output)

    def _rest(self):
        """Sends threads to sleep that would spin on, where the library has a word for it."""
        if hasattr(self._call, "rest"):
            self._call.rest()

    def close(self):
        self._call = None


class Apart:
    """An entrant in a process of its own, which waits on a pipe while others have their turn."""

    def __init__(self, entrant, case, layout, threads):
        env = {k: v for k, v in os.environ.items()
               if k not in ("REGARD_NUM_THREADS", "REGARD_MAX_ISA")}
        env["REGARD_NUM_THREADS"] = str(entrant.threads or threads)
        if entrant.isa:
            env["REGARD_MAX_ISA"] = entrant.isa
        self._process = subprocess.Popen(
            [sys.executable, "-m", "harness.turns"], cwd=Path(__file__).parent.parent, env=env,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            made = self._ask(backend=entrant.backend, max_error=entrant.max_error,
                             case=case.text, layout=layout)
        except Exception:
            self.close()
            raise
        self.ran, self.workspace_bytes = made["ran"], made["workspace_bytes"]

    def _ask(self, **question):
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the process ended: " + str(self._process.wait()))
        answer = json.loads(line)
        if "refused" in answer:
            raise libraries.Refused(answer["refused"])
        return answer

    def turn(self, pause, min_seconds):
        return self._ask(turn=[pause, min_seconds])["seconds"]

    def error(self):
        return self._ask(error=True)["error"]

    def close(self):
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def serve(questions, answers):
    """The other end of Apart: a JSON object a line, the first says what is measured."""
    here = None
    for line in questions:
        question = json.loads(line)
        try:
            if "case" in question:
                case = parse_case(question["case"])
                from .grids import Entrant

                entrant = Entrant("regard", "regard", question["backend"],
                                  max_error=question["max_error"])
                here = Here(entrant, case, make_sets(case, question["layout"]), 0)
                answer = {"ran": here.ran, "workspace_bytes": here.workspace_bytes}
            elif "turn" in question:
                answer = {"seconds": here.turn(*question["turn"])}
            else:
                answer = {"error": here.error()}
        except libraries.Refused as refused:
            answer = {"refused": str(refused)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    serve(sys.stdin, sys.stdout)
