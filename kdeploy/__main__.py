"""`python -m kdeploy`."""

from kdeploy.cli import main

main()
