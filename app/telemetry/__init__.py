"""What is counted and measured, how the numbers of several processes become one page, and who may ask for it."""
