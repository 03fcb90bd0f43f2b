"""Numerals, units and counters of Chinese, Japanese and Korean that stand behind a number, mostly without a space."""

import re

from topr_exp.grading.latex import words

# They make another number of the one before them: 5万 is 50,000, 5割 is 50 %. The 千 of 千克, kilogram, does not; that
# of 千克拉, a thousand carats, and of 千米ドル, a thousand US dollars, does.
NUMERAL = r"\s*(?:[十百万萬亿億兆半割折成십백천만억조]|千(?!克(?!拉)|米(?!ドル)|[瓦卡帕赫伏焦升]))"
_UNITS = words(
    """千克 公斤 克 毫克 吨 噸 斤 千米 公里 米 厘米 公分 毫米 平方米 平方千米 平方公里 平方厘米 立方米 立方厘米 千瓦
    千卡 升 毫升 度 元 块 塊 块钱 塊錢 美元 日元 欧元 歐元 角 円 ドル ユーロ セント 원 달러 센트 유로
    秒 秒钟 秒鐘 分 分钟 分鐘 小时 小時 時間 天 日 周 週 星期 週間 个月 個月 ヶ月 か月 カ月 年 年間 岁 歲 歳
    초 분 시간 일 주 주일 개월 달 년 살 세 개 명 권 마리 장 대 병 잔 번 회 송이 자루 그루 상자 쪽 점 도
    个 個 箇 つ 只 隻 本 支 枝 人 名 位 件 张 張 枚 辆 輛 颗 顆 棵 条 條 朵 冊 册 匹 頭 头 台 回 次 倍 页 頁 盒 箱
    瓶 杯 袋 包 点 點 羽
    キロ キログラム グラム キロメートル メートル センチ センチメートル ミリメートル リットル ページ パーセント
    킬로그램 그램 킬로미터 미터 센티미터 리터 페이지 퍼센트
    ㎏ ㎎ ㎞ ㎝ ㎜ ㎡ ㎥ ㎢ ℃ ℉"""
)
_LONGEST_FIRST = sorted(_UNITS, key=len, reverse=True)
UNIT_AT_START = re.compile(rf"\A\s*(?:{'|'.join(_LONGEST_FIRST)})(?:です|입니다|이다)?")  # with "it is" behind it
