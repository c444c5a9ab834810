"""The definitions: one module an operator, with the reference that FIB judges against and the sizes
it is judged at.
"""
