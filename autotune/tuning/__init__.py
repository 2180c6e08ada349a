"""From a problem to a stored winner: one problem, a preset of many, or a sweep of them all."""
