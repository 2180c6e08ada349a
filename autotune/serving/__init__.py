"""Which kernel serves a problem, on any target: records looked up, fitted, predicted, bound."""
