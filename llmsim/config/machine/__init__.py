"""What of the machines the cluster file states beside devices and nodes: links and memory."""
