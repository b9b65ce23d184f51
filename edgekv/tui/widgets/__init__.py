"""The parts of the screen: each takes data and posts messages up."""
