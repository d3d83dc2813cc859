"""Times the import of an installed package, beyond TensorFlow's own.

Each time in a process of its own, for an environment that has nothing else.
Fails above 0.3 seconds of the processor, which other work on the machine does
not add to; the least of five.
"""

import subprocess
import sys

LIMIT_SECONDS = 0.3
ROUNDS = 5
SOURCE = """
import time

import keras
import tensorflow

start = time.process_time()
import keras_tfopt
print(time.process_time() - start)
"""


def main():
    seconds = []
    for _ in range(ROUNDS):
        printed = subprocess.run(
            [sys.executable, "-c", SOURCE],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        seconds.append(float(printed.split()[-1]))
    told = ", ".join(f"{value:.2f}" for value in seconds)
    print(f"import keras_tfopt: {told} s beyond TensorFlow and Keras")
    if min(seconds) > LIMIT_SECONDS:
        raise SystemExit(f"more than {LIMIT_SECONDS} s")


if __name__ == "__main__":
    main()
