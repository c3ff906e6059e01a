# /etc/profile resets PATH in login shells, which would hide the image's Python.
PATH=/opt/venv/bin:$PATH
export PATH
