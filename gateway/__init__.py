"""The gateway: the data plane, the scheduler and what operators see of them."""
