"""What the build needs: nothing in here is part of the package."""
