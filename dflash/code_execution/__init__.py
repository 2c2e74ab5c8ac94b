"""Code out of an answer, run against its tests in a process with limits. `programs` is the entrance."""
