# Runs rdma-core's tests, and prints a line for each: its name, its result, and the reason.
import os
import sys
import unittest

top, device = sys.argv[1:]
directory = os.path.join(top, "tests")
sys.path[:0] = [top, directory]
sys.argv = ["tests", "--dev", device]
from args_parser import parser

parser.parse_args()


class Result(unittest.TestResult):
    def say(self, test, result, reason=""):
        print("RESULT", test.id(), result, reason.strip().splitlines()[-1] if reason.strip() else "", sep="\t", flush=True)

    def addSuccess(self, test):
        self.say(test, "passed")

    def addSkip(self, test, reason):
        self.say(test, "skipped", reason)

    def addError(self, test, err):
        self.say(test, "failed", "%s: %s" % (err[0].__name__, err[1]))

    addFailure = addError


names = sorted("tests." + n[:-3] for n in os.listdir(directory) if n.startswith("test_") and n.endswith(".py"))
unittest.defaultTestLoader.loadTestsFromNames(names).run(Result())
