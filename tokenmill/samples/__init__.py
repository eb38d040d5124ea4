"""The one sequence of samples of a training run: arithmetic, a run's state, and which samples a store holds."""
