"""What makes files of this project from other files of it: `python -m tools.api`, and so on."""
