"""The console: pages for people in a browser, and the changes that they follow."""
