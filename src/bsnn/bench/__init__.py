"""What `bsnn bench` measures: memory and time of training, and the speed of the inference engine.

`child.py` is also a script that another environment's python runs. May import everything but cli.
"""
