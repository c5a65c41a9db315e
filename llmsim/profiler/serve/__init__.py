"""Real engines that run in this process, with the times of their parts."""
