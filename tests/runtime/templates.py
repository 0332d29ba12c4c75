"""Chat templates that treat replies like those of well-known models."""

# As Qwen3's: thinking of replies before the last question is dropped; a reply behind it has some.
QWEN3 = """\
{%- set ns = namespace(last=messages | length - 1, seen=false) -%}
{%- for message in messages[::-1] -%}
    {%- if message.role == 'user' and not ns.seen -%}
        {%- set ns.seen = true -%}
        {%- set ns.last = messages | length - 1 - loop.index0 -%}
    {%- endif -%}
{%- endfor -%}
{%- for message in messages -%}
    {%- set said = message.content -%}
    {{- '<|im_start|>' + message.role + '\\n' -}}
    {%- if message.role == 'assistant' -%}
        {%- set thought = '' -%}
        {%- if '</think>' in said -%}
            {%- set thought = said.split('</think>')[0].rstrip('\\n') -%}
            {%- set thought = thought.split('<think>')[-1].lstrip('\\n') -%}
            {%- set said = said.split('</think>')[-1].lstrip('\\n') -%}
        {%- endif -%}
        {%- if loop.index0 > ns.last and (loop.last or thought) -%}
            {%- set thought = thought.strip('\\n') -%}
            {{- '<think>\\n' + thought + '\\n</think>\\n\\n' + said.lstrip('\\n') -}}
        {%- else -%}
            {{- said -}}
        {%- endif -%}
    {%- else -%}
        {{- said -}}
    {%- endif -%}
    {{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""

# As DeepSeek-R1's: the prompt opens the thinking; what is in front of its end is dropped.
DEEPSEEK = """\
{%- for message in messages -%}
    {%- if message.role == 'system' -%}{{- message.content -}}{%- endif -%}
{%- endfor -%}
{%- for message in messages -%}
    {%- if message.role == 'user' -%}
        {{- '<|im_start|>user:' + message.content -}}
    {%- elif message.role == 'assistant' -%}
        {%- set said = message.content -%}
        {%- if '</think>' in said -%}{%- set said = said.split('</think>')[-1] -%}{%- endif -%}
        {{- '<|im_start|>' + said + '<|im_end|>' -}}
    {%- endif -%}
{%- endfor -%}
{{- '<|im_start|><think>\\n' -}}
"""

# As Llama 3's and Gemma's: what is said is trimmed.
TRIMMED = """\
{%- for message in messages -%}
    {{- '<|im_start|>' + message.role + '\\n' + message.content | trim + '<|im_end|>' -}}
{%- endfor -%}
{{- '<|im_start|>assistant\\n' -}}
"""
